#!/usr/bin/env bash
# One node's part of train.sbatch: the first one runs DVC, the others join its training.
#
# No node ends well before the first one, which has DVC record the result when training is over. A
# node that fails ends with its exit code, and srun then ends the others.
set -euo pipefail
stage=$1
: "${SLURM_GPUS_ON_NODE:?is not set: ask Slurm for GPUs, with --gpus-per-node}"
where="--nnodes $SLURM_NNODES --node-rank $SLURM_NODEID --nproc-per-node $SLURM_GPUS_ON_NODE"
where="$where --master-addr $RRCM_MASTER --master-port $RRCM_PORT"
where="$where --rdzv-conf timeout=3600" # seconds to wait for DVC, which may have to hash first
export PATH=$PWD/.venv/bin:$PATH

stopped=
trap 'stopped=1' TERM # our children get it, too, and save

if [ "$SLURM_NODEID" -eq 0 ]; then
    trap 'touch "$RRCM_ENDED"' EXIT
    RRCM_TORCHRUN=$where rrcm repro --single-item "$stage"
    exit
fi

# shellcheck disable=SC2086 # several words
DVC_STAGE=$stage torchrun $where -m "pipeline.stages.${stage%%@*}" &
training=$!
while [ ! -e "$RRCM_ENDED" ]; do
    if [ -n "$training" ] && ! kill -0 "$training" 2> /dev/null; then
        code=0
        wait "$training" || code=$?
        [ "$code" -eq 0 ] || [ -n "$stopped" ] || exit "$code"
        training=
    fi
    sleep 1 || true
done
if [ -n "$training" ]; then # the stage was up to date, and nothing was trained
    kill "$training" 2> /dev/null || true
fi
