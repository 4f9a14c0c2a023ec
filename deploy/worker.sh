#!/usr/bin/env bash
# Makes the clone of a worker, once, tells DVC where its remote is, and runs `rrcm flow` with these
# arguments there, by the code of that clone. docs/deployment.md
set -euo pipefail
: "${RRCM_REPOSITORY:?is not set: the address of the git repository}"
clone=${RRCM_CLONE:-/srv/rrcm/clone}

if [ ! -d "$clone/.git" ]; then
    git clone --quiet -- "$RRCM_REPOSITORY" "$clone.part"
    mv "$clone.part" "$clone" # whole or absent
fi
cd "$clone"
# In .dvc/config.local, which git does not track: a worker refuses a clone with edits.
python -m dvc remote add --quiet --force --local --default deployed "$RRCM_STORE"
python -m dvc remote modify --quiet --local deployed endpointurl "$RRCM_STORE_ENDPOINT"
export PYTHONPATH=$clone
exec python cli.py flow "$@"
