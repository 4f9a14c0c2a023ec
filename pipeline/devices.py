"""One process for each device, all on parts of the same work."""

import os
import subprocess
import sys
import time

from rrcm.errors import BackendError

POLL = 0.2  # seconds


def run(names: tuple[str, ...]) -> None:
    """Run this command with ``--shard i/k`` on each of k devices, all at once.

    Processes on the CPU share its cores. If one fails, the others are stopped; what they have done
    is kept, and the same command goes on from there.

    Raises:
        BackendError: A process failed; it has said why.
    """
    arguments = [*sys.argv[1:], "--devices", ""]  # the last one counts
    shards = [f"{i}/{len(names)}" for i in range(1, len(names) + 1)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", "import cli; cli.main()", *arguments, "--shard", shard],
            env=os.environ | _environment(name, names),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for name, shard in zip(names, shards, strict=True)
    ]
    try:
        while any(process.poll() is None for process in processes):
            _require(processes, names)
            time.sleep(POLL)
        _require(processes, names)
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def _environment(name: str, names: tuple[str, ...]) -> dict[str, str]:
    if name != "cpu":
        return {"CUDA_VISIBLE_DEVICES": name}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = max(1, (cores or 1) // names.count("cpu"))
    return {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": str(threads)}


def _require(processes: list[subprocess.Popen[bytes]], names: tuple[str, ...]) -> None:
    for process, name in zip(processes, names, strict=True):
        if process.poll():
            raise BackendError(
                f"--devices: the process on {name} failed (exit code {process.returncode}); what "
                "all have done is kept, the same command goes on from there"
            )
