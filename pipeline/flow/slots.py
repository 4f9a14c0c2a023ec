"""One slot for each GPU of this host, shared by all checkouts and users.

A slot is a file lock, held by an open file and by nothing else: whoever holds it and ends, however,
has freed it, and nothing is left to clean up. What a stage starts may hold it on, by inheriting the
file (``Slots.files``).
"""

import csv
import fcntl
import os
import shutil
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from rrcm.errors import StageError
from rrcm.locks import lock

__all__ = ["Slots", "Stopped", "lock", "names", "taken"]

FOLDER, COUNT, VISIBLE = "RRCM_SLOTS_DIR", "RRCM_SLOTS", "CUDA_VISIBLE_DEVICES"
DEFAULT = Path("/tmp/rrcm-slots")  # not $TMPDIR, which may be each user's own
POLL = 0.1


class Stopped(StageError):
    """Waiting was given up, because that was asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slots:
    """Slots held: what a process that is to use them gets, as environment and as open files."""

    names: tuple[str, ...]
    environment: dict[str, str]
    files: tuple[int, ...]


def names() -> tuple[str, ...]:
    """This host's slots: its GPUs as CUDA_VISIBLE_DEVICES or nvidia-smi name them.

    Without a GPU, as many times ``cpu`` as RRCM_SLOTS says, once by default.

    Raises:
        StageError: nvidia-smi does not answer, or RRCM_SLOTS is no number.
    """
    return tuple(name for name, _ in _slots())


def _slots() -> list[tuple[str, str]]:
    """(name, what its lock is named by) of each slot."""
    numbers = _gpus()
    visible = os.environ.get(VISIBLE)
    chosen = [*numbers] if visible is None else [one.strip() for one in visible.split(",")]
    if "-1" in chosen:  # CUDA takes no notice of what comes after
        chosen = chosen[: chosen.index("-1")]
    if gpus := {_lock_name(one, numbers): one for one in chosen if one}:
        return [(name, key) for key, name in gpus.items()]
    said = os.environ.get(COUNT, "1")
    if not said.isdecimal() or int(said) == 0:
        raise StageError(f"{COUNT}: must be how many stages may run at once here, got {said!r}")
    return [("cpu", f"cpu-{i}") for i in range(int(said))]


def _lock_name(gpu: str, numbers: dict[str, str]) -> str:
    """The same for a GPU however it is named: by number, by UUID, or by the beginning of one."""
    known = [uuid for number, uuid in numbers.items() if gpu == number or uuid.startswith(gpu)]
    return known[0] if len(known) == 1 else gpu.replace("/", "-")


def _gpus() -> dict[str, str]:
    """Number -> UUID of the host's GPUs, as nvidia-smi has them; none without it."""
    if not (program := shutil.which("nvidia-smi")):
        return {}
    command = [program, "--query-gpu=index,uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
    except subprocess.TimeoutExpired:
        raise StageError(
            "nvidia-smi: no answer in 60 s; name GPUs in CUDA_VISIBLE_DEVICES"
        ) from None
    if done.returncode != 0:  # installed, but there is no driver, or no GPU
        return {}
    return {row[0].strip(): row[1].strip() for row in csv.reader(done.stdout.splitlines())}


@contextmanager
def taken(count: int, *, stop: Event, say: Callable[[str], None]) -> Iterator[Slots]:
    """Hold ``count`` slots, all of this host's for 0, as soon as they are free.

    Who came first is served first, also where somebody waits for several: none of them is starved,
    and no two wait for each other. What is waited for is said once.

    Raises:
        StageError: There are not as many.
        Stopped: ``stop`` was set while waiting.
    """
    every = _slots()
    wanted = count or len(every)
    if wanted > len(every):
        raise StageError(
            f"compute.devices: {wanted}, but this host has {len(every)}: "
            f"{', '.join(name for name, _ in every)}; 0 takes them all"
        )
    with ExitStack() as stack:
        held = _collect(every, wanted, stack, stop=stop, say=say)
        gpus = ",".join(name for name, _ in held if name != "cpu")
        yield Slots(
            names=tuple(name for name, _ in held),
            environment={VISIBLE: gpus, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if gpus else {},
            files=tuple(file for _, file in held),
        )


def _collect(
    every: list[tuple[str, str]],
    wanted: int,
    stack: ExitStack,
    *,
    stop: Event,
    say: Callable[[str], None],
) -> list[tuple[str, int]]:
    """(name, open file) of the slots taken, which ``stack`` closes, in the order of ``every``."""
    folder = _folder()
    files = {key: _open(folder, key) for _, key in every}
    for file in files.values():
        stack.callback(os.close, file)
    turn = _Turn(folder)
    held: list[tuple[str, str]] = []
    told = False
    with turn:
        while True:
            if turn.came:
                for slot in every:
                    if len(held) < wanted and slot not in held and lock(files[slot[1]]):
                        held.append(slot)
            if len(held) == wanted:
                return [(name, files[key]) for name, key in every if (name, key) in held]
            if not told:
                told = True
                say(f"waiting for {wanted} of {len(every)} slots of this host")
            if stop.wait(POLL):
                raise Stopped("stopped while it waited for a slot")


class _Turn:
    """A place in the queue of those who collect slots; the kernel keeps the order.

    A place cannot be given up while the kernel is asked for it, so a thread asks, and gives the
    turn on at once if nobody wants it any more.
    """

    def __init__(self, folder: Path) -> None:
        self._file = _open(folder, "turn")
        self._mutex = threading.Lock()
        self._left = False
        self.came = lock(self._file)

    def __enter__(self) -> "_Turn":
        if not self.came:
            threading.Thread(target=self._wait, name="turn", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            self._left = True
            if self.came:
                os.close(self._file)

    def _wait(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        with self._mutex:
            if self._left:
                os.close(self._file)
            self.came = True


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


def _open(folder: Path, name: str) -> int:
    """A lock file, made if it is missing; one that another user made is only read."""
    path = folder / f"{name}.lock"
    try:
        for _ in range(2):
            try:
                return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            except FileNotFoundError:
                pass
            try:
                file = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
            except FileExistsError:
                continue
            os.fchmod(file, 0o666)
            return file
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise StageError(f"{path}: {error.strerror}; {FOLDER} names another folder") from None
