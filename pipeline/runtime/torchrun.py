"""Trains on several devices: torchrun starts a training stage's script again, once per device.

These processes train and save their state in the stage's scratch folder, from which the script that
started them continues (docs/training.md).
"""

import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing import errors
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.run import main as torchrun

from pipeline.runtime.graph import Stage
from rrcm.config.sections import Compute
from rrcm.core import pool
from rrcm.core.errors import ConfigError, RrcmError, StageError, TrainingError
from rrcm.training.engine import distributed

TORCHRUN, SCRATCH, LAUNCHER = "RRCM_TORCHRUN", "RRCM_SCRATCH", "RRCM_LAUNCHER"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # torchrun handles these
ECHOES = ("closed by peer", "reset by peer", "gloo", "NCCL", "ProcessGroup", "TCPStore")


def devices(compute: Compute) -> int:
    """The number of devices of this machine that train; 0 means all GPUs, or the CPU without any.

    Raises:
        ConfigError: There are GPUs, but too few.
    """
    here = torch.cuda.device_count()
    if here and compute.devices > here:
        raise ConfigError(
            f"compute.devices: {compute.devices}, but there are {here} GPUs; 0 takes them all"
        )
    return compute.devices or max(1, here)


def wanted(compute: Compute) -> bool:
    """Whether this process is to `launch` others; False in a launched process."""
    several = TORCHRUN in os.environ or devices(compute) > 1
    return several and not distributed.launched()


def launch(stage: Stage, compute: Compute) -> None:
    """Train ``stage`` in one process per device, and wait for them.

    ``RRCM_TORCHRUN`` has the arguments of torchrun if several hosts train.

    Raises:
        TrainingError: A process failed; the others were stopped, and saved state is kept.
        StageError: A signal stopped this process, and with it all others.
    """
    count = devices(compute)
    where = shlex.split(os.environ.get(TORCHRUN, f"--standalone --nproc-per-node {count}"))
    script = stage.name.partition("@")[0]
    os.environ |= {SCRATCH: str(stage.scratch.absolute()), LAUNCHER: str(os.getpid())}
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    logs = ("--log-dir", str(stage.scratch / "torchrun"))
    os.environ.setdefault("TORCHELASTIC_ERROR_FILE", str(stage.scratch / "torchrun/error.json"))
    try:
        torchrun([*where, *logs, "-m", f"pipeline.stages.{script}"])
    except errors.ChildFailedError as error:
        rank, reason = _cause(error.failures)
        raise TrainingError(
            f"{stage.name}: process {rank} failed: {reason}; the others were stopped, and what was "
            "saved is kept for the same command to go on from",
            retryable=True,
        ) from None
    except SignalException as stopped:
        raise StageError(
            f"{stage.name}: stopped by {stopped.sigval.name}; the same command goes on from what "
            "was saved",
            retryable=True,
        ) from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _cause(failures: dict[int, errors.ProcessFailure]) -> tuple[int, str]:
    """The process that failed first, and its error; the others only fail as a consequence."""

    def order(rank: int) -> tuple[bool, bool, int]:
        failure = failures[rank]
        killed = failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM
        echo = any(word in _message(failure) for word in ECHOES)
        return not killed, echo, failure.timestamp

    rank = min(failures, key=order)
    return rank, _message(failures[rank])


def _message(failure: errors.ProcessFailure) -> str:
    told = failure.message
    if isinstance(told, dict):
        return told["message"].partition("\n")[0]
    if failure.exitcode < 0:
        return f"killed by {failure.signal_name()}"
    return f"exit code {failure.exitcode}, see above"


@contextmanager
def telling() -> Iterator[None]:
    """In a launched process, report errors to the launcher, which prints expected ones.

    The process also ends when its launcher ends, as its result would not be used.
    """
    pool.follow(int(os.environ.get(LAUNCHER) or os.getppid()))
    errors.get_error_handler().initialize()
    try:
        yield
    except Exception as error:
        errors.get_error_handler().record_exception(error)
        if isinstance(error, RrcmError) or any(word in str(error) for word in ECHOES):
            sys.exit(1)
        raise


def scratch() -> Path:
    """The folder in which a launched process saves; a temporary one on a host without the stage."""
    return Path(os.environ.get(SCRATCH) or tempfile.mkdtemp(prefix="rrcm-"))
