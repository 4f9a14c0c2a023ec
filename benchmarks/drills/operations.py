"""A process's operations on files, counted, of which one can be its last.

They are: opening one to write, each write, fsync, rename, unlink, mkdir, rmdir, truncate, link.
What native code does by itself is not met, unless it is told of: `Operations.native`.
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
    """Counts this process's operations on files under ``folder``, and dies at one of them.

    Those under the folders ``but`` of it do not count, nor does Python's cache.
    """

    def __init__(self, folder: Path, at: int | None, *, but: tuple[str, ...] = ELSEWHERE) -> None:
        """Die at operation ``at``, counted from 1, or at none."""
        self.folder, self.at, self.but = str(folder), at, but
        self.seen: list[str] = []
        self._open, self._fsync = io.open, os.fsync
        self._pwrite, self._sendfile = os.pwrite, os.sendfile

    def install(self) -> None:
        """Begin; there is no end but that of the process."""
        sys.addaudithook(self._audit)
        io.open = builtins.open = self.open
        os.fsync, os.pwrite, os.sendfile = self.fsync, self.pwrite, self.sendfile

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
        elif event == "os.symlink":
            self._at_path(event, given[1], given[2])
        elif event == "os.truncate":
            self._at_path(event, given[0], -1)

    def _at_path(self, what: str, path: Any, folder: int) -> None:
        if self.inside(path, folder):
            self.meet(what.removeprefix("os."))

    def inside(self, path: Any, folder: int = -1) -> bool:
        """Whether operations on a path, relative to an open folder perhaps, count."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        base = os.readlink(f"/proc/self/fd/{folder}") if folder >= 0 else os.getcwd()
        whole = os.path.normpath(os.path.join(base, os.fsdecode(path)))
        below = os.path.relpath(whole, self.folder)
        return below.split(os.sep)[0] not in self.but and "__pycache__" not in below

    def fsync(self, file: int) -> None:
        """As `os.fsync`."""
        self.meet("fsync")
        self._fsync(file)

    def pwrite(self, file: int, data: bytes, offset: int) -> int:
        """As `os.pwrite`."""
        half = data[: len(data) // 2]
        self.meet("write", lambda: self._pwrite(file, half, offset))
        return self._pwrite(file, data, offset)

    def sendfile(self, to: int, file: int, offset: int, count: int) -> int:
        """As `os.sendfile`, by which shutil copies."""
        half = os.fstat(file).st_size // 2
        self.meet("write", lambda: self._sendfile(to, file, offset, half))
        return self._sendfile(to, file, offset, count)

    def native(self, write: Callable[..., None]) -> Callable[..., None]:
        """As ``write(what, path, …)``, native code that writes a file; counted as one write."""

        def met(what: object, path: Path, *more: Any) -> None:
            def torn() -> None:
                write(what, path, *more)
                os.truncate(path, path.stat().st_size // 2)

            self.meet("write", torn)
            write(what, path, *more)

        return met

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


@dataclass(frozen=True)
class End:
    """How a run ended: its exit code, what it printed, its operations, and what it imported."""

    code: int
    output: str
    operations: list[str]
    modules: list[str]

    @property
    def killed(self) -> bool:
        """Whether it came to the operation that was to be its last."""
        return self.code == -signal.SIGKILL


class Started:
    """A run in a fork of this process, in the current folder."""

    def __init__(self, run: Callable[[Operations], object], operations: Operations) -> None:
        """Start ``run(operations)``, once these count."""
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
        """Wait for it."""
        _, status = os.waitpid(self.pid, 0)
        texts = []
        for file in self._files:
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
            file.close()
        output, seen, modules = texts
        return End(os.waitstatus_to_exitcode(status), output, seen.split(), modules.split())


def share(end: End) -> None:
    """Import what a run imported, so that those that are forked from now on need not."""
    for name in end.modules:
        with suppress(ImportError):  # of a name that stands for no file
            import_module(name)
