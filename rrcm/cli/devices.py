"""Shares a command among devices: one process on each, with a share of the images."""

import os
import subprocess
import sys
import time

import torch

from rrcm.core.errors import BackendError, ConfigError

POLL = 0.2  # seconds
VISIBLE, GIVEN = "CUDA_VISIBLE_DEVICES", "RRCM_GPU"


def choose(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the devices; ``all`` are all GPUs, or the CPU where there is none.

    For the CPU, GPUs are hidden from this process, too: the classifier that it then opens computes
    the same function as in its processes.

    Raises:
        ConfigError: A device is not available; lists those that are.
    """
    here = gpus() if set(names) != {"cpu"} else []
    if names == ("all",):
        names = tuple(map(str, range(len(here)))) or ("cpu",)
    if set(names) == {"cpu"}:
        os.environ[VISIBLE] = ""
        return names
    if missing := [name for name in names if int(name) >= len(here)]:
        listed = ", ".join([*(f"{i} ({gpu})" for i, gpu in enumerate(here)), "cpu"])
        raise ConfigError(f"--devices: no GPU {missing[0]} here, only {listed}")
    return names


def gpus() -> list[str]:
    """Return the names of the GPUs of this process, by index."""
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def require_given() -> None:
    """In a process of `run`, refuse to work without the GPU that was assigned to it.

    Raises:
        BackendError: The GPU does not answer. The CPU would work, but was not asked for.
    """
    if (name := os.environ.get(GIVEN)) and not torch.cuda.is_available():
        raise BackendError(f"GPU {name} does not answer; `rrcm doctor` shows what there is")


def run(names: tuple[str, ...], options: tuple[str, ...] = ()) -> None:
    """Run this command with ``--shard i/k`` on each of k devices, all at once.

    ``options`` are more options of the command, which take the place of those that were typed.

    Processes on the CPU share its cores. If one fails, the others are stopped; their votes are
    kept, and the same command resumes from there. All of them end when this process ends.

    Raises:
        BackendError: A process failed; it has printed the reason.
    """
    arguments = [*sys.argv[1:], *options, "--devices", ""]  # the last one counts
    shards = [f"{i}/{len(names)}" for i in range(1, len(names) + 1)]
    code = (  # follow first: during the imports, which take seconds, this process may be killed
        f"from rrcm.core import pool; pool.follow({os.getpid()}); "
        "from rrcm.__main__ import main; main()"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, *arguments, "--shard", shard],
            env=os.environ | _environment(name, names),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for name, shard in zip(names, shards, strict=True)
    ]
    try:
        while any(child.poll() is None for child in children):
            _require_all(children, names)
            time.sleep(POLL)
        _require_all(children, names)
    finally:
        for child in children:
            child.terminate()
            child.wait()


def _environment(name: str, names: tuple[str, ...]) -> dict[str, str]:
    if name != "cpu":
        visible = os.environ.get(VISIBLE)  # GPUs are numbered among these
        return {VISIBLE: visible.split(",")[int(name)].strip() if visible else name, GIVEN: name}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = max(1, (cores or 1) // names.count("cpu"))
    return {VISIBLE: "", "OMP_NUM_THREADS": str(threads)}


def _require_all(children: list[subprocess.Popen[bytes]], names: tuple[str, ...]) -> None:
    for child, name in zip(children, names, strict=True):
        if child.poll():
            raise BackendError(
                f"--devices: the process on {name} failed (exit code {child.returncode}); the "
                "votes of all are kept, and the same command resumes from there"
            )
