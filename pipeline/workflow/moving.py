"""Keeps the state of an unfinished stage at the DVC remote, so that another clone goes on from it.

The state is the stage's scratch folder, or that of a piece of it (`pieces`). Its files are replaced
whole or appended to, so that a copy made at any moment can be resumed from. At the remote a state
is one archive and, written after it, `LATEST`, which has its name: who reads that never gets half a
state.
"""

import os
import shutil
import tempfile
import threading
import uuid
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dvc.config import NoRemoteError
from dvc.exceptions import DvcException
from dvc.repo import Repo

from pipeline.runtime.graph import SCRATCH
from rrcm.core.errors import StageError, one_line

PLACE = "rrcm-resume"  # a folder at the remote, beside DVC's own
WHOLE, LATEST = "stage", "latest"
PERIOD, MOST = "RRCM_MOVE_SECONDS", "RRCM_MOVE_BYTES"  # between two copies, and of one; 0: none
USUAL, LARGEST = 600.0, 20e9

Say = Callable[[str], None]


class Place:
    """Where the state of a stage, or of a piece, is: here, and at the default remote."""

    def __init__(self, name: str, digest: str) -> None:
        """Find the place of ``name``, whose inputs have this digest.

        Raises:
            StageError: There is no default remote.
        """
        self.name, self.digest, self.folder = name, digest, SCRATCH / name / digest[:16]
        self._mark = SCRATCH / f"{name}.moved"  # the archive that was last sent or fetched here
        try:
            with Repo(".") as repo:
                remote = repo.cloud.get_remote()
        except DvcException as error:
            why = "no default remote" if isinstance(error, NoRemoteError) else one_line(error)
            raise StageError(f"{name}: its state stays on this host ({why})") from None
        self._fs: Any = remote.fs
        stage, _, piece = name.partition(":")
        self._family = remote.fs.join(remote.path, PLACE, stage, digest[:16])
        self._there = remote.fs.join(self._family, piece or WHOLE)

    def send(self) -> None:
        """Copy the state to the remote; the one that was there stays until that is done."""
        before, archive = self._latest(), f"{uuid.uuid4().hex}.zip"
        with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
            packed, pointer = Path(folder, archive), Path(folder, LATEST)
            _pack(self.folder, packed)
            pointer.write_text(archive)
            self._fs.makedirs(self._there, exist_ok=True)
            self._fs.put_file(str(packed), self._at(archive))
            self._fs.put_file(str(pointer), self._at(LATEST))
        self._mark.write_text(archive)
        if before:
            self._fs.remove(self._at(before))

    def fetch(self) -> bool:
        """Replace the state here by the remote's if another clone wrote that; whether it did."""
        archive = self._latest()
        known = self._mark.read_text() if self._mark.exists() else ""
        if not archive or (archive == known and self.folder.exists()):
            return False
        self.folder.parent.mkdir(parents=True, exist_ok=True)  # a new clone has no SCRATCH
        with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
            packed, unpacked = Path(folder, archive), Path(folder, "state")
            self._fs.get_file(self._at(archive), str(packed))
            with zipfile.ZipFile(packed) as found:  # damage is an error: each file has a checksum
                found.extractall(unpacked)
            shutil.rmtree(self.folder, ignore_errors=True)
            unpacked.rename(self.folder)
        self._mark.write_text(archive)
        return True

    def fetch_all(self) -> int:
        """`fetch` the state of the stage and of its pieces; how many were fetched."""
        there = self._fs.ls(self._family, detail=False) if self._fs.exists(self._family) else []
        pieces = sorted({self._fs.name(path) for path in there} - {WHOLE})
        places = [self, *(Place(f"{self.name}:{piece}", self.digest) for piece in pieces)]
        return sum(place.fetch() for place in places)

    def forget(self) -> None:
        """Remove the state of the stage and of its pieces from the remote."""
        if self._fs.exists(self._family):
            self._fs.rm(self._family, recursive=True)
        for mark in SCRATCH.glob(f"{self.name}*.moved"):
            mark.unlink()

    def size(self) -> int:
        """Bytes of the state here."""
        return sum(path.stat().st_size for path in _files(self.folder))

    def _latest(self) -> str:
        return self._fs.read_text(self._at(LATEST)) if self._fs.exists(self._at(LATEST)) else ""

    def _at(self, name: str) -> str:
        return self._fs.join(self._there, name)


def _files(folder: Path) -> list[Path]:
    """The largest first: a stage saves what follows its state, such as logs, before it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(files, key=lambda path: (-path.stat().st_size, path))


def _pack(folder: Path, packed: Path) -> None:
    with zipfile.ZipFile(packed, "w") as made:
        for path in _files(folder):
            name = path.relative_to(folder).as_posix()
            with path.open("rb") as file, made.open(name, "w", force_zip64=True) as copy:
                shutil.copyfileobj(file, copy, 1 << 20)


@contextmanager
def moving(name: str, digest: str, *, keep: bool = False, say: Say) -> Iterator[None]:
    """Resume a stage from the remote's state, and send its own now and then during the block.

    It is sent every RRCM_MOVE_SECONDS, 600 by default, and when the block raises, so that a stage
    that was stopped loses nothing, and one whose host is gone at most these seconds. After success
    it is removed from the remote, or sent if ``keep``. A state of more than RRCM_MOVE_BYTES, 20 GB
    by default, and one that the remote refuses stay here: none of this fails the stage. A stage
    also fetches what its pieces made.

    Args:
        name: Of the stage, or of a piece of it.
        digest: Of its inputs, from `graph.digest`.
        keep: Whether the state is what the block is run for, as with a piece.
        say: Called with a message when a state was fetched, and when one cannot be sent.
    """
    period, most = _number(PERIOD, USUAL), _number(MOST, LARGEST)
    try:
        place = Place(name, digest)
        if not period:
            raise StageError(f"{name}: its state stays on this host ({PERIOD} is 0)")
        if _tried(place.fetch if keep else place.fetch_all, say=say):
            say(f"{name}: goes on from what other clones left at the remote")
    except StageError as error:
        say(str(error))
        yield
        return
    over, sent = threading.Event(), {"size": -1}

    def send() -> None:
        size = place.size() if place.folder.exists() else 0
        if size > most:
            if sent["size"] <= most:
                say(f"{name}: its state of {size / 1e9:.1f} GB stays on this host ({MOST})")
            sent["size"] = size
        elif size:
            _tried(place.send, say=say)

    def watch() -> None:
        while not over.wait(period):
            send()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    good = False
    try:
        yield
        good = True
    finally:
        over.set()
        thread.join()
        if good and not keep:
            _tried(place.forget, say=say)
        else:
            send()


def _tried(call: Callable[[], Any], *, say: Say) -> Any:
    """What ``call`` returns; None if the remote refuses, which may be for a while only."""
    try:
        return call()
    except Exception as error:
        say(f"resume state: {one_line(error) or type(error).__name__}")
        return None


def _number(name: str, usual: float) -> float:
    try:
        return float(os.environ.get(name, usual))
    except ValueError:
        raise StageError(f"{name}: must be a number, got {os.environ[name]!r}") from None
