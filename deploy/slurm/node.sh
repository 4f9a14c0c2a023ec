#!/usr/bin/env bash
# One node's part of train.sbatch: the first one runs DVC, the others join its training.
set -euo pipefail
stage=$1
: "${SLURM_GPUS_ON_NODE:?is not set: ask Slurm for GPUs, with --gpus-per-node}"
where="--nnodes $SLURM_NNODES --node-rank $SLURM_NODEID --nproc-per-node $SLURM_GPUS_ON_NODE"
where="$where --master-addr $RRCM_MASTER --master-port $RRCM_PORT"
where="$where --rdzv-conf timeout=3600" # seconds to wait for DVC, which may have to hash first
export PATH=$PWD/.venv/bin:$PATH

if [ "$SLURM_NODEID" -eq 0 ]; then
    export RRCM_TORCHRUN=$where
    exec rrcm repro --single-item "$stage"
fi
export DVC_STAGE=$stage
# shellcheck disable=SC2086 # several words
exec torchrun $where -m "pipeline.stages.${stage%%@*}"
