"""Limits of a server's connections: their number, and the time that a client has for a request.

Guarantee: a server has at most `Door.most` connections, except for a moment while it accepts more,
so that file descriptors remain and it goes on accepting. A new connection replaces the one that has
kept the server waiting longest for a request; a request that has arrived in full is never dropped
for it. A client that does not send the header of a request, or does not read its answer, within
`Door.seconds` is cut off. (The application limits the time of a body.)
"""

import asyncio
import logging
import os
import resource
import time
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from rrcm.core.errors import ConfigError

AT_ONCE = 8  # connections that are accepted before the first of them is handled
SPARE = 64  # descriptors for files, and for connections above the limit, a few times AT_ONCE
MOST = 4096  # connections, even with more descriptors
HEADER = 10.0  # seconds
QUIET = 60.0  # seconds between two log lines of one kind
LOG = logging.getLogger(__name__)
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: 49\r\n\r\n"
    b'{"detail":"all connections are taken; try again"}'
)


def affordable() -> int:
    """The number of connections that the limit of open files allows; at most `MOST`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST
    listing = next(path for path in map(Path, ("/proc/self/fd", "/dev/fd")) if path.exists())
    return min(soft - len(os.listdir(listing)) - SPARE, MOST)


class Door:
    """The connections of a server, and those on whose clients it waits."""

    def __init__(self, most: int | None = None, *, seconds: float = HEADER) -> None:
        """Allow ``most`` connections; None allows as many as the limit of open files does.

        Raises:
            ConfigError: The limit of open files does not allow as many, or not even one.
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
        """Whether a new connection may stay; ``inside`` counts it and all others."""
        if inside <= self.most:
            return True
        for longest in self.waited_for:
            self.say("all %d connections were taken: one that had not asked was cut off", self.most)
            longest.cut()
            return True
        self.say("all %d connections are being answered: a new one was refused", self.most)
        return False

    def say(self, line: str, *values: object) -> None:
        """Log a warning, at most once in `QUIET` seconds for one kind, with its count."""
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
        """An exception handler for an event loop, which does not repeat errors of ``accept``."""
        error = context.get("exception")
        if isinstance(error, OSError) and "accept" in context.get("message", ""):
            self.say("cannot accept a connection: %s", error.strerror)
        else:
            loop.default_exception_handler(context)


class Connection(H11Protocol):
    """One connection; its `Door` decides whether it is accepted, and for how long."""

    def __init__(self, *arguments: Any, door: Door, **named: Any) -> None:
        """Like uvicorn's, with the limits of ``door``."""
        super().__init__(*arguments, **named)
        self.door = door
        self.deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Accept the connection, or answer 503."""
        super().connection_made(transport)
        if not self.door.make_place(len(self.connections)):
            transport.write(BUSY)
            transport.close()
        self._look()

    def data_received(self, data: bytes) -> None:
        """Receive more of a request."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """Start the deadline of a client that does not read its answer."""
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        """End that deadline."""
        super().resume_writing()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the door."""
        super().connection_lost(exc)
        self.door.waited_for.pop(self, None)
        self._stop_waiting()

    def cut(self) -> None:
        """Close the connection now, without sending the rest."""
        self.door.waited_for.pop(self, None)
        self.transport.abort()

    def _look(self) -> None:
        """Start the deadline if the client has to act next; end it if the server has."""
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
