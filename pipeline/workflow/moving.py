"""Keeps the state of an unfinished stage at the DVC remote, so that another clone goes on from it.

The state is the scratch folder of a stage, or of a share of it. Its files are replaced whole or
appended to, so that a copy made at any moment can be resumed from. At the remote a state is one
archive, which is replaced whole; what is not a whole archive counts as none.
"""

import os
import shutil
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from dvc.repo import Repo

from pipeline.runtime.graph import SCRATCH
from pipeline.workflow.processes import Say
from rrcm.core.errors import one_line

PLACE = "rrcm-resume"  # a folder at the remote, beside DVC's own
PERIOD = float(os.environ.get("RRCM_MOVE_SECONDS", 600.0))  # between two copies


class Place:
    """Where the states of a stage and of its shares are at the default remote."""

    def __init__(self, name: str, digest: str) -> None:
        """Find the place of the stage or share ``name``, whose inputs have this digest.

        Raises:
            DvcException: There is no default remote.
        """
        self.name, self._key = name, digest[:16]
        with Repo(".") as repo:
            remote = repo.cloud.get_remote()
        self._fs: Any = remote.fs
        self._there = self._fs.join(remote.path, PLACE, name.partition(":")[0], self._key)

    def send(self) -> None:
        """Copy the state here, if there is any, to the remote, in place of the one there."""
        state = SCRATCH / self.name / self._key
        files = [path for path in state.rglob("*") if path.is_file()]
        if not files:
            return
        # The largest first: a stage saves what follows its state, such as logs, before it.
        files.sort(key=lambda path: (-path.stat().st_size, path))
        with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
            packed = Path(folder, "state.zip")
            with zipfile.ZipFile(packed, "w") as archive:
                for path in files:
                    with suppress(FileNotFoundError):  # replaced since, or the stage is over
                        archive.write(path, path.relative_to(state))
            self._fs.makedirs(self._there, exist_ok=True)
            self._fs.put_file(str(packed), self._archive(self.name))
        self._mark(self.name).write_text(str(self._fs.checksum(self._archive(self.name))))

    def fetch(self) -> int:
        """Replace states here by those of the remote that another clone wrote; how many.

        Of a stage, also those of its shares.
        """
        there = self._fs.ls(self._there, detail=False) if self._fs.exists(self._there) else []
        names = [self._fs.name(path).removesuffix(".zip") for path in there]
        return sum(self._fetch(name) for name in names if f"{name}:".startswith(f"{self.name}:"))

    def _fetch(self, name: str) -> bool:
        archive, mark, state = self._archive(name), self._mark(name), SCRATCH / name / self._key
        written = str(self._fs.checksum(archive))
        if state.exists() and mark.exists() and mark.read_text() == written:
            return False
        state.parent.mkdir(parents=True, exist_ok=True)  # a new clone has no SCRATCH
        with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
            packed, unpacked = Path(folder, "state.zip"), Path(folder, "state")
            self._fs.get_file(archive, str(packed))
            with zipfile.ZipFile(packed) as zipped:  # damage is an error: each file has a checksum
                zipped.extractall(unpacked)
            shutil.rmtree(state, ignore_errors=True)
            unpacked.rename(state)
        mark.write_text(written)
        return True

    def forget(self) -> None:
        """Remove the states of the stage and of its shares from the remote."""
        if self._fs.exists(self._there):
            self._fs.rm(self._there, recursive=True)
        for mark in SCRATCH.glob(f"{self.name}*.moved"):
            mark.unlink()

    def _archive(self, name: str) -> str:
        return self._fs.join(self._there, f"{name}.zip")

    def _mark(self, name: str) -> Path:
        """The checksum of the archive that was last sent or fetched here."""
        return SCRATCH / f"{name}.moved"


@contextmanager
def moving(name: str, digest: str, *, keep: bool = False, say: Say) -> Iterator[None]:
    """Resume a stage from the remote's state, and send its own now and then during the block.

    It is sent every RRCM_MOVE_SECONDS, 600 by default, and when the block raises, so that a stage
    that was stopped loses nothing, and one whose host is gone at most these seconds. After success
    it is removed from the remote, or sent if ``keep``. A state that the remote refuses stays here:
    none of this fails the stage.

    Args:
        name: Of the stage, which also fetches what its shares drew, or of a share of it.
        digest: Of its inputs, from `graph.digest`.
        keep: Whether the state is what the block is run for, as with a share.
        say: Called with a message when a state was fetched, and when one cannot be sent.
    """
    if not (place := _tried(partial(Place, name, digest), say=say)):
        yield
        return
    if _tried(place.fetch, say=say):
        say(f"{name}: goes on from what other clones left at the remote")
    over = threading.Event()

    def watch() -> None:
        while not over.wait(PERIOD):
            _tried(place.send, say=say)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    last = place.send
    try:
        yield
        last = place.send if keep else place.forget
    finally:
        over.set()
        thread.join()
        _tried(last, say=say)


def _tried(call: Callable[[], Any], *, say: Say) -> Any:
    """What ``call`` returns; None if the remote refuses, which may be for a while only."""
    try:
        return call()
    except Exception as error:
        say(f"resume state stays on this host: {one_line(error) or type(error).__name__}")
        return None
