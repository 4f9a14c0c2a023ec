"""Shows on a terminal that a command is at work while it has nothing else to show."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import psutil

QUIET = 1.0  # seconds without output after which it is shown
ERASE = "\r\x1b[K"


@contextmanager
def shown() -> Iterator[None]:
    """While the block writes nothing to the terminal, show on it for how long that has been so.

    Nothing is shown behind an unfinished line, such as a progress bar, or while another program
    that this one has started may write to the same terminal. Without a terminal, nothing happens.
    """
    if not sys.stderr.isatty():
        yield
        return
    line = _Line(sys.stderr)
    before = sys.stdout, sys.stderr
    sys.stderr = _Watched(sys.stderr, line)
    if sys.stdout.isatty():
        sys.stdout = _Watched(sys.stdout, line)
    ended = threading.Event()
    thread = threading.Thread(target=line.draw_until, args=(ended,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        sys.stdout, sys.stderr = before


class _Line:
    """The line of the terminal in which the time is shown."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal, self._process = terminal, psutil.Process()
        self._lock = threading.RLock()
        self._last, self._finished, self._drawn = time.monotonic(), True, False
        os.register_at_fork(after_in_child=self._forked)

    def draw_until(self, ended: threading.Event) -> None:
        while not ended.wait(0.2):
            with self._lock:
                quiet = time.monotonic() - self._last
                if quiet < QUIET or not self._finished:
                    continue
                if self._process.children():
                    self._last = time.monotonic()
                else:
                    self._terminal.write(f"{ERASE}at work, {quiet:.0f} s")
                    self._terminal.flush()
                    self._drawn = True
        self.erase()

    def write(self, stream: TextIO, text: str) -> int:
        with self._lock:
            self.erase()
            self._last = time.monotonic()
            if text:
                self._finished = text.endswith("\n")
            return stream.write(text)

    def erase(self) -> None:
        with self._lock:
            if self._drawn:
                self._terminal.write(ERASE)
                self._terminal.flush()
            self._drawn = False

    def _forked(self) -> None:
        """In a child there is no thread that draws, and nobody who would release the lock."""
        self._lock, self._drawn = threading.RLock(), False


class _Watched:
    """A stream whose writes the line knows of."""

    def __init__(self, stream: TextIO, line: _Line) -> None:
        self._stream, self._line = stream, line

    def write(self, text: str) -> int:
        return self._line.write(self._stream, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
