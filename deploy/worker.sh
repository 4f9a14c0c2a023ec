#!/usr/bin/env bash
# Runs `rrcm flow` with these arguments in the clone of a worker, by the code of that clone.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
clone=${RRCM_CLONE:-/srv/rrcm/clone}

"$here/checkout.sh"
cd "$clone"
export PYTHONPATH=$clone
exec python cli.py flow "$@"
