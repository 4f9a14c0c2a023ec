"""File locks with an interruptible wait; a process that ends frees its locks."""

import fcntl
from collections.abc import Callable
from threading import Event

from rrcm.core.errors import StageError

POLL = 0.1


class Stopped(StageError):
    """Waiting ended because a stop was requested."""


def take(
    file: int,
    *,
    stop: Event,
    why: str,
    kind: int = fcntl.LOCK_EX,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Lock an open file as soon as others have freed it.

    Args:
        file: Stays locked until this process and all that inherit the file have closed it.
        stop: May be set at any time, and ends the waiting.
        why: The reason for waiting, for messages.
        kind: LOCK_EX or, to share the lock, LOCK_SH.
        say: Called once if the lock is not free.

    Raises:
        Stopped: ``stop`` was set before the lock was free.
    """
    told = False
    while True:
        try:
            return fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                told = True
                say(f"waiting for {why}")
        if stop.wait(POLL):
            raise Stopped(f"stopped while it waited for {why}")
