"""The GPUs of this host, each for one stage at a time, whatever checkout and user it is of.

A GPU is taken by a file lock, held by an open file and by nothing else: whoever holds it and ends,
however, has freed it. What a stage starts may hold it on, by inheriting the file (``Taken.files``).
A host without a GPU has as many places for stages as RRCM_SLOTS says.
"""

import csv
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from pipeline.flow import locks
from pipeline.flow.locks import Stopped
from rrcm.core.errors import StageError
from rrcm.core.locks import lock

FOLDER, COUNT, VISIBLE = "RRCM_SLOTS_DIR", "RRCM_SLOTS", "CUDA_VISIBLE_DEVICES"
DEFAULT = Path("/tmp/rrcm-slots")  # not $TMPDIR, which may be each user's own
POLL = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """GPUs held: what a process that is to use them gets, as environment and as open files."""

    names: tuple[str, ...]
    environment: dict[str, str]
    files: tuple[int, ...]


def names() -> tuple[str, ...]:
    """This host's GPUs as CUDA_VISIBLE_DEVICES or nvidia-smi name them.

    Without a GPU, as many times ``cpu`` as RRCM_SLOTS says, once by default.

    Raises:
        StageError: nvidia-smi does not answer, or RRCM_SLOTS is no number.
    """
    return tuple(name for name, _ in _all())


def _all() -> list[tuple[str, str]]:
    """(name, what its lock is named by) of each GPU."""
    numbers = _installed()
    visible = os.environ.get(VISIBLE)
    chosen = [*numbers] if visible is None else [one.strip() for one in visible.split(",")]
    if "-1" in chosen:  # CUDA takes no notice of what comes after
        chosen = chosen[: chosen.index("-1")]
    if gpus := {_lock_name(one, numbers): one for one in chosen if one}:
        return [(name, key) for key, name in gpus.items()]
    count = os.environ.get(COUNT, "1")
    if not count.isdecimal() or int(count) == 0:
        raise StageError(f"{COUNT}: must be how many stages may run at once here, got {count!r}")
    return [("cpu", f"cpu-{i}") for i in range(int(count))]


def _lock_name(gpu: str, numbers: dict[str, str]) -> str:
    """The same for a GPU however it is named: by number, by UUID, or by the beginning of one."""
    known = [uuid for number, uuid in numbers.items() if gpu == number or uuid.startswith(gpu)]
    return known[0] if len(known) == 1 else gpu.replace("/", "-")


def _installed() -> dict[str, str]:
    """Number -> UUID of the host's GPUs, as nvidia-smi has them; none without it."""
    if not (program := shutil.which("nvidia-smi")):
        return {}
    command = [program, "--query-gpu=index,uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
    except subprocess.TimeoutExpired:
        raise StageError(f"nvidia-smi: no answer in 60 s; name GPUs in {VISIBLE}") from None
    if done.returncode != 0:  # installed, but there is no driver, or no GPU
        return {}
    return {row[0].strip(): row[1].strip() for row in csv.reader(done.stdout.splitlines())}


@contextmanager
def taken(count: int, *, stop: Event, say: Callable[[str], None]) -> Iterator[Taken]:
    """Hold ``count`` GPUs, all of this host's for 0, as soon as they are free.

    One process collects at a time: nobody takes a GPU from whoever waits for several, and no two
    wait for each other. What is waited for is said once.

    Raises:
        StageError: There are not as many.
        Stopped: ``stop`` was set while waiting.
    """
    every = _all()
    wanted = count or len(every)
    if wanted > len(every):
        raise StageError(
            f"compute.devices: {wanted}, but this host has {len(every)}: "
            f"{', '.join(name for name, _ in every)}; 0 takes them all"
        )
    folder, why = _folder(), f"{wanted} of {len(every)} slots of this host"
    with ExitStack() as stack:
        files = [_open(folder, key, stack) for _, key in every]
        held: list[int] = []
        told = False
        with ExitStack() as turn:
            locks.take(_open(folder, "turn", turn), stop=stop, why=why, say=say)
            while len(held := held + _free(files, held, wanted)) < wanted:
                if not told:
                    told = True
                    say(f"waiting for {why}")
                if stop.wait(POLL):
                    raise Stopped(f"stopped while it waited for {why}")
        gpus = [every[i][0] for i in sorted(held)]
        visible = {VISIBLE: ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        yield Taken(
            names=tuple(gpus),
            environment={} if "cpu" in gpus else visible,
            files=tuple(files[i] for i in sorted(held)),
        )


def _free(files: list[int], held: list[int], wanted: int) -> list[int]:
    """Lock what is free, by its place in ``files``, as far as more is wanted."""
    found: list[int] = []
    for i, file in enumerate(files):
        if len(held) + len(found) < wanted and i not in held and lock(file):
            found.append(i)
    return found


def _folder() -> Path:
    """Where all users of the host keep the locks; like /tmp itself, theirs alone to remove."""
    folder = Path(os.environ.get(FOLDER) or DEFAULT)
    try:
        folder.mkdir(parents=True)
        folder.chmod(0o1777)
    except FileExistsError:
        pass
    except OSError as error:
        raise StageError(f"{folder}: {error.strerror}; {FOLDER} names another folder") from None
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise StageError(f"{folder}: is no folder; {FOLDER} names another one")
    return folder


def _open(folder: Path, name: str, stack: ExitStack) -> int:
    """A lock file, made if it is missing, that ``stack`` closes; another user's is only read."""
    path = folder / f"{name}.lock"
    try:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
            os.fchmod(file, 0o666)
        except FileExistsError:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise StageError(f"{path}: {error.strerror}; {FOLDER} names another folder") from None
    stack.callback(os.close, file)
    return file
