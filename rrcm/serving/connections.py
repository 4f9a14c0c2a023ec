"""Connections of a server: how many there may be, and how long a client may take to ask.

Guarantee: a server has at most `Door.most` connections and those of a moment, whoever connects, so
that descriptors for files remain and it goes on accepting. A new one takes the place of the one
that has kept the server waiting for its request the longest; requests that have arrived in full
are never given up for it. A client that does not send the header of a request, or does not read
its answer, in `Door.seconds` is cut off. (The time for a body is the application's.)
"""

import asyncio
import logging
import os
import resource
import time
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from rrcm.errors import ConfigError

AT_ONCE = 8  # connections that are accepted before the first of them is looked at
SPARE = 64  # descriptors: for files, and for the connections of a moment, a few times AT_ONCE
MOST = 4096  # connections, however many descriptors there may be
HEADER = 10.0  # seconds
QUIET = 60.0  # seconds between two lines about the same
LOG = logging.getLogger(__name__)
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: 49\r\n\r\n"
    b'{"detail":"all connections are taken; try again"}'
)


def affordable() -> int:
    """How many connections the limit of descriptors leaves room for; at most `MOST`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST
    listing = next(path for path in map(Path, ("/proc/self/fd", "/dev/fd")) if path.exists())
    return min(soft - len(os.listdir(listing)) - SPARE, MOST)


class Door:
    """Who is inside, and who of them still has to ask."""

    def __init__(self, most: int | None = None, *, seconds: float = HEADER) -> None:
        """For at most ``most`` connections; as many as the limit of descriptors leaves room for.

        Raises:
            ConfigError: There is no room for as many, or for one.
        """
        room = affordable()
        if not 1 <= (room if most is None else most) <= room:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            got = "" if most is None else f", got {most:,}"
            raise ConfigError(
                f"--connections: the limit of {soft:,} open files (`ulimit -n`) leaves room for 1 "
                f"to {max(room, 0):,}{got}"
            )
        self.most = room if most is None else most
        self.seconds = seconds
        self.waited_for: dict[Connection, None] = {}  # longest first
        self._said: dict[str, tuple[float, int]] = {}  # when last, and how often since

    def make_place(self, inside: int) -> bool:
        """Whether one that has just come may stay, being one of ``inside``."""
        if inside <= self.most:
            return True
        for longest in self.waited_for:
            self.say("all %d connections were taken: one that had not asked was cut off", self.most)
            longest.cut()
            return True
        self.say("all %d connections are being answered: a new one was refused", self.most)
        return False

    def say(self, line: str, *values: object) -> None:
        """Log a warning, but a line of one kind at most once in `QUIET` seconds, with its count."""
        last, count = self._said.get(line, (-QUIET, 0))
        now = time.monotonic()
        if now - last < QUIET:
            self._said[line] = (last, count + 1)
            return
        self._said[line] = (now, 0)
        LOG.warning(
            line + (f"; {count:,} times more since it was last said" if count else ""), *values
        )

    def trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception handler of a loop, as which it says once what would be said in a storm."""
        error = context.get("exception")
        if isinstance(error, OSError) and "accept" in context.get("message", ""):
            self.say("cannot accept a connection: %s", error.strerror)
        else:
            loop.default_exception_handler(context)


class Connection(H11Protocol):
    """One connection; a `door` decides whether it is let in, and for how long."""

    def __init__(self, *arguments: Any, door: Door, **named: Any) -> None:
        """As uvicorn's, behind ``door``."""
        super().__init__(*arguments, **named)
        self.door = door
        self.deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Let it in, or say that there is no place."""
        super().connection_made(transport)
        if not self.door.make_place(len(self.connections)):
            transport.write(BUSY)
            transport.close()
        self._look()

    def data_received(self, data: bytes) -> None:
        """More of a request."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Its turn to ask again."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """It does not read what it is sent."""
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        """It does."""
        super().resume_writing()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        super().connection_lost(exc)
        self.door.waited_for.pop(self, None)
        self._stop_waiting()

    def cut(self) -> None:
        """Close it now, whatever is still to be sent."""
        self.door.waited_for.pop(self, None)
        self.transport.abort()

    def _look(self) -> None:
        """Whose turn is it: the client's, or ours?"""
        asked = self.cycle is not None and not self.cycle.response_complete
        if asked and not self.flow.write_paused:
            self._stop_waiting()
        elif self.deadline is None:
            self.deadline = self.loop.call_later(self.door.seconds, self.cut)
        if asked and not self.cycle.more_body:
            self.door.waited_for.pop(self, None)
        else:
            self.door.waited_for.setdefault(self)

    def _stop_waiting(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
