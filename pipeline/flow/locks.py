"""File locks that are waited for until somebody gives up; whoever ends has freed its own."""

import fcntl
from collections.abc import Callable
from threading import Event

from rrcm.core.errors import StageError

POLL = 0.1


class Stopped(StageError):
    """Waiting was given up, because that was asked for."""


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
        file: Held by its process and by those that inherit it, until the last has closed it.
        stop: May be set at any time, and ends waiting.
        why: What is waited for, for messages.
        kind: LOCK_SH shares it.
        say: Told once, if it has to be waited for.

    Raises:
        Stopped: ``stop`` was set before.
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
