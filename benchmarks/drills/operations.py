"""Counts a process's file operations, and can kill it at one of them.

They are: opening to write, each write, fsync, rename, unlink, mkdir, rmdir, truncate, link.
Operations of native code are not seen, unless wrapped by `Operations.native`.
"""

import builtins
import io
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR
ELSEWHERE = ("..", ".dvc", ".git")


class Operations:
    """Counts this process's operations on files under ``folder``, and kills it at one of them.

    Subfolders ``but`` and Python's cache are not counted.
    """

    def __init__(self, folder: Path, at: int | None, *, but: tuple[str, ...] = ELSEWHERE) -> None:
        """Die at operation ``at``, counted from 1, or at none."""
        self.folder, self.at, self.but = str(folder), at, but
        self.seen: list[str] = []
        self._open, self._fsync = io.open, os.fsync
        self._pwrite, self._sendfile = os.pwrite, os.sendfile

    def install(self) -> None:
        """Start counting, until the process ends."""
        sys.addaudithook(self._audit)
        io.open = builtins.open = self.open
        os.fsync, os.pwrite, os.sendfile = self.fsync, self.pwrite, self.sendfile

    def meet(self, what: str, torn: Callable[[], object] = lambda: None) -> None:
        """Count an operation before it is done; ``torn`` does a part of it before a kill."""
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
        elif event == "os.symlink":
            self._at_path(event, given[1], given[2])
        elif event == "os.truncate":
            self._at_path(event, given[0], -1)

    def _at_path(self, what: str, path: Any, folder: int) -> None:
        if self.inside(path, folder):
            self.meet(what.removeprefix("os."))

    def inside(self, path: Any, folder: int = -1) -> bool:
        """Whether operations on a path, which may be relative to an open folder, count."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        base = os.readlink(f"/proc/self/fd/{folder}") if folder >= 0 else os.getcwd()
        whole = os.path.normpath(os.path.join(base, os.fsdecode(path)))
        below = os.path.relpath(whole, self.folder)
        return below.split(os.sep)[0] not in self.but and "__pycache__" not in below

    def fsync(self, file: int) -> None:
        """Like `os.fsync`."""
        self.meet("fsync")
        self._fsync(file)

    def pwrite(self, file: int, data: bytes, offset: int) -> int:
        """Like `os.pwrite`."""
        half = data[: len(data) // 2]
        self.meet("write", lambda: self._pwrite(file, half, offset))
        return self._pwrite(file, data, offset)

    def sendfile(self, to: int, file: int, offset: int, count: int) -> int:
        """Like `os.sendfile`, which shutil uses to copy."""
        half = os.fstat(file).st_size // 2
        self.meet("write", lambda: self._sendfile(to, file, offset, half))
        return self._sendfile(to, file, offset, count)

    def native(self, write: Callable[..., None]) -> Callable[..., None]:
        """Wrap ``write(what, path, …)``, native code that writes a file; counted as one write."""

        def met(what: object, path: Path, *more: Any) -> None:
            def torn() -> None:
                write(what, path, *more)
                os.truncate(path, path.stat().st_size // 2)

            self.meet("write", torn)
            write(what, path, *more)

        return met

    def open(self, file: Any, mode: str = "r", buffering: int = -1, *more: Any, **named: Any):
        """Like the builtin; each write of a buffer to the file is an operation."""
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


@dataclass(frozen=True)
class End:
    """The result of a run: its exit code, output, operations and imports."""

    code: int
    output: str
    operations: list[str]
    modules: list[str]

    @property
    def killed(self) -> bool:
        """Whether it reached the operation at which it was to be killed."""
        return self.code == -signal.SIGKILL


class Started:
    """A run in a fork of this process, in the current folder."""

    def __init__(self, run: Callable[[Operations], object], operations: Operations) -> None:
        """Start ``run(operations)`` with the operations counted."""
        self._files = [tempfile.TemporaryFile() for _ in range(3)]
        sys.stdout.flush()
        if not (pid := os.fork()):
            os._exit(self._child(run, operations))
        self.pid = pid

    def _child(self, run: Callable[[Operations], object], operations: Operations) -> int:
        for stream in (1, 2):
            os.dup2(self._files[0].fileno(), stream)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
        operations.install()
        code = 0
        try:
            run(operations)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            if isinstance(ended.code, str):
                print(ended.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
            code = 70
        sys.stdout.flush()
        sys.stderr.flush()
        for file, lines in zip(self._files[1:], (operations.seen, sys.modules), strict=True):
            file.write("\n".join(lines).encode())
            file.flush()
        return code

    def end(self) -> End:
        """Wait for the run to end; return its result."""
        _, status = os.waitpid(self.pid, 0)
        texts = []
        for file in self._files:
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
            file.close()
        output, seen, modules = texts
        return End(os.waitstatus_to_exitcode(status), output, seen.split(), modules.split())


def share(end: End) -> None:
    """Import the modules that a run imported, so that later forks need not."""
    for name in end.modules:
        with suppress(ImportError):  # a name without a file
            import_module(name)
