"""A process's operations on files, counted, of which one can be its last.

They are: opening one to write, each write, fsync, rename, unlink, mkdir, rmdir, truncate, link.
What native code does by itself is not met.
"""

import builtins
import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR


class Operations:
    """Counts this process's operations on files under ``folder``, and dies at one of them."""

    def __init__(self, folder: Path, at: int | None) -> None:
        """Die at operation ``at``, counted from 1, or at none."""
        self.folder, self.at = str(folder), at
        self.seen: list[str] = []
        self._open, self._fsync = io.open, os.fsync

    def install(self) -> None:
        """Begin; there is no end but that of the process."""
        sys.addaudithook(self._audit)
        io.open = builtins.open = self.open
        os.fsync = self.fsync

    def meet(self, what: str, torn: Callable[[], object] = lambda: None) -> None:
        """An operation is about to be done; ``torn`` does a part of it."""
        self.seen.append(what)
        if len(self.seen) == self.at:
            torn()
            os.kill(os.getpid(), signal.SIGKILL)

    def _audit(self, event: str, given: tuple[Any, ...]) -> None:
        if event == "open":
            if isinstance(given[0], str | bytes | os.PathLike) and given[2] & WRITING:
                self._at_path("open", given[0], -1)
        elif event in ("os.remove", "os.rmdir"):
            self._at_path(event, given[0], given[1])
        elif event == "os.mkdir":
            self._at_path(event, given[0], given[2])
        elif event in ("os.rename", "os.link"):
            self._at_path(event, given[1], given[3])
        elif event == "os.truncate":
            self._at_path(event, given[0], -1)

    def _at_path(self, what: str, path: Any, folder: int) -> None:
        if self.inside(path, folder):
            self.meet(what.removeprefix("os."))

    def inside(self, path: Any, folder: int = -1) -> bool:
        """Whether a path, relative to an open folder perhaps, is one of the checkout's own."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        base = os.readlink(f"/proc/self/fd/{folder}") if folder >= 0 else os.getcwd()
        whole = os.path.normpath(os.path.join(base, os.fsdecode(path)))
        below = os.path.relpath(whole, self.folder)
        return below.split(os.sep)[0] not in ("..", ".dvc", ".git") and "__pycache__" not in below

    def fsync(self, file: int) -> None:
        """As `os.fsync`."""
        self.meet("fsync")
        self._fsync(file)

    def open(self, file: Any, mode: str = "r", buffering: int = -1, *more: Any, **named: Any):
        """As the builtin; each write of a buffer to the file is an operation."""
        if isinstance(file, int) or not set(mode) & set("wxa+") or not self.inside(file):
            return self._open(file, mode, buffering, *more, **named)
        raw = _File(file, "".join(set(mode) - set("bt")), opener=named.pop("opener", None))
        raw.operations = self
        buffer = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw)
        if "b" in mode:
            return buffer if buffering else raw
        text = io.TextIOWrapper(buffer, *more, **named)
        text.mode = mode
        return text


class _File(io.FileIO):
    operations: Operations

    def write(self, data: Any) -> int:
        part = bytes(data[: len(data) // 2])
        self.operations.meet("write", lambda: super(_File, self).write(part))
        return super().write(data)
