"""A server's secret: who does not send it as a bearer token is told nothing but its health."""

import hmac
import re
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rrcm.errors import ConfigError

OPEN = {"/health"}  # for whoever looks after the server, and knows no secret
LEAST, MOST = 16, 4096  # characters
FORM = re.compile(rb"[A-Za-z0-9._~+/-]+=*")  # of RFC 6750
DETAIL = "send the token of this server, as `Authorization: Bearer TOKEN`"


def read(file: Path) -> bytes:
    """The token that a file holds; white space around it does not count.

    Raises:
        ConfigError: There is no such file, or what it holds is too short or no token.
    """
    try:
        if not file.is_file():  # a FIFO would keep us waiting
            raise ConfigError(f"--token-file {file}: not a file")
        with file.open("rb") as opened:
            token = opened.read(MOST + 1).strip()
    except OSError as error:
        raise ConfigError(f"--token-file {file}: cannot be read ({error.strerror})") from None
    if not LEAST <= len(token) <= MOST or not FORM.fullmatch(token):
        raise ConfigError(
            f"--token-file {file}: expected one token of {LEAST} to {MOST:,} letters, digits and "
            "-._~+/; `openssl rand -hex 32` makes one"
        )
    return token


class Guard:
    """Answers 401 to requests without the token, before anything of them is read."""

    def __init__(self, app: ASGIApp, token: bytes) -> None:
        """Before ``app``."""
        self.app = app
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or scope["path"] in OPEN or self._knows(Headers(scope=scope)):
            await self.app(scope, receive, send)
            return
        headers = {"WWW-Authenticate": "Bearer", "Connection": "close"}
        await JSONResponse({"detail": DETAIL}, 401, headers)(scope, receive, send)

    def _knows(self, headers: Headers) -> bool:
        kind, _, token = headers.get("authorization", "").partition(" ")
        said = token.strip().encode("latin-1")
        return kind.lower() == "bearer" and hmac.compare_digest(said, self.token)
