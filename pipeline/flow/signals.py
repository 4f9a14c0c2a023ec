"""Signals as an event: what runs is stopped in order, however often somebody presses Ctrl-C."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stop(threading.Event):
    """Set when work is to end; ``reason`` says why.

    ``crashed``: it was neither a person at the terminal nor one at Prefect's page who asked.
    """

    reason: str = ""
    crashed: bool = False

    def ask(self, reason: str, *, crashed: bool = False) -> None:
        """Set it; the first reason counts."""
        if not self.reason:
            self.reason, self.crashed = reason, crashed
            self.set()


@contextmanager
def heeded(stop: Stop, say: Callable[[str], None]) -> Iterator[None]:
    """Let SIGTERM, SIGINT and SIGHUP set ``stop`` and do nothing else; ``say`` is told of each.

    What was ignored before, as under nohup, still is. Threads other than the main one, where Python
    knows no signals, change nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A handler may interrupt the main thread while it holds a lock that `set` needs; the byte that
    # Python writes for each signal is read by a thread that holds none.
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    watcher = threading.Thread(target=_watch, args=(reading, stop, say), daemon=True)
    watcher.start()
    heard = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, _pass) for number in heard}
    woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writing)
        watcher.join()
        os.close(reading)


def _pass(number: int, frame: FrameType | None) -> None:
    """Python writes the byte for signals that have a handler."""


def _watch(pipe: int, stop: Stop, say: Callable[[str], None]) -> None:
    while byte := os.read(pipe, 1):
        if byte[0] in ENDING:
            name, still = signal.Signals(byte[0]).name, "still " if stop.is_set() else ""
            stop.ask(f"stopped by {name}", crashed=byte[0] != signal.SIGINT)
            with suppress(OSError):  # whoever listened may be gone
                say(f"{name}: {still}stopping; what was saved is kept")
