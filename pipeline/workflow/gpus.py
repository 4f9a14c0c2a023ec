"""Locks the GPUs of this host: each runs one stage of this user at a time, across checkouts.

A GPU is taken by a lock on an open file: when its holder ends, for any reason, the GPU is free.
Processes of a stage can inherit the file and so keep the GPU locked. A host without a GPU runs
RRCM_SLOTS stages at a time. Whoever can open a lock can hold it for ever, so the folder of the
locks is closed to other users, unless RRCM_SLOTS_DIR names one that users share.
"""

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

from pipeline.workflow import processes
from pipeline.workflow.processes import Say
from rrcm.core.errors import StageError
from rrcm.core.locks import lock, opened

FOLDER, COUNT, VISIBLE = "RRCM_SLOTS_DIR", "RRCM_SLOTS", "CUDA_VISIBLE_DEVICES"
SHARED = Path("/tmp")  # not $TMPDIR, which may differ between sessions of a user


def names() -> tuple[str, ...]:
    """This host's GPUs: those of CUDA_VISIBLE_DEVICES, by its names, or all, by number.

    Without a GPU, ``cpu`` is repeated RRCM_SLOTS times, by default once.

    Raises:
        StageError: RRCM_SLOTS is no number.
    """
    visible = os.environ.get(VISIBLE)
    chosen = _installed() if visible is None else [one.strip() for one in visible.split(",")]
    if "-1" in chosen:  # CUDA ignores the entries after it
        chosen = chosen[: chosen.index("-1")]
    if gpus := tuple(dict.fromkeys(one for one in chosen if one)):
        return gpus
    count = os.environ.get(COUNT, "1")
    if not count.isdecimal() or int(count) == 0:
        raise StageError(f"{COUNT}: must be how many stages may run at once here, got {count!r}")
    return ("cpu",) * int(count)


def _installed() -> list[str]:
    """The numbers of the host's GPUs from nvidia-smi; none if it, or the driver, is not there."""
    if not (program := shutil.which("nvidia-smi")):
        return []
    command = [program, "--query-gpu=index", "--format=csv,noheader"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return done.stdout.split() if done.returncode == 0 else []


@contextmanager
def taken(count: int, *, stop: Event, say: Say) -> Iterator[tuple[dict[str, str], list[int]]]:
    """Hold ``count`` GPUs, all of this host's for 0, as soon as they are free.

    Only one process collects GPUs at a time: no other takes a GPU while it waits for several, and
    no two wait for each other. ``say`` is called once with the reason for waiting.

    Yields:
        The environment and the open files for a process that uses them.

    Raises:
        StageError: This host has fewer GPUs.
        Stopped: ``stop`` was set while waiting.
    """
    every = names()
    wanted = count or len(every)
    if wanted > len(every):
        raise StageError(
            f"compute.devices: {wanted}, but this host has {len(every)}: "
            f"{', '.join(every)}; 0 takes them all"
        )
    folder, why = _folder(), f"{wanted} of {len(every)} slots of this host"
    with ExitStack() as stack:
        keys = [f"cpu-{i}" if gpu == "cpu" else gpu for i, gpu in enumerate(every)]
        files = [_open(folder, key.replace("/", "-"), stack) for key in keys]
        held: set[int] = set()

        def collected() -> bool:
            for i, file in enumerate(files):
                if len(held) < wanted and i not in held and lock(file):
                    held.add(i)
            return len(held) == wanted

        with ExitStack() as turn:
            processes.take(_open(folder, "turn", turn), stop=stop, why=why, say=say)
            processes.wait_until(collected, stop=stop, why=why, say=say)
        gpus = [every[i] for i in sorted(held)]
        visible = {VISIBLE: ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        yield {} if "cpu" in gpus else visible, [files[i] for i in sorted(held)]


def _folder() -> Path:
    """The folder of the locks: one of this user alone, or the one that RRCM_SLOTS_DIR names."""
    named = os.environ.get(FOLDER)
    folder = Path(named or SHARED / f"rrcm-slots-{os.geteuid()}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise StageError(f"{folder}: {error.strerror}; {FOLDER} names another folder") from None
    private = found.st_uid == os.geteuid() and not found.st_mode & 0o077
    if not (stat.S_ISDIR(found.st_mode) and (named or private)):
        raise StageError(
            f"{folder}: must be a folder of yours that nobody else may enter (mode 700); remove "
            f"it, or let {FOLDER} name another folder"
        )
    return folder


def _open(folder: Path, name: str, stack: ExitStack) -> int:
    """Open a lock file, created if missing, until ``stack`` closes; another user's is read-only."""
    path = folder / f"{name}.lock"
    try:
        try:
            file = opened(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL)
            os.fchmod(file, 0o644)
        except FileExistsError:
            file = opened(path, os.O_RDONLY)
    except OSError as error:
        raise StageError(f"{path}: {error.strerror}; {FOLDER} names another folder") from None
    stack.callback(os.close, file)
    return file
