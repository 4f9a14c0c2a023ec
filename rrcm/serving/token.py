"""The bearer token of a server; without it, a request is refused except for ``/health``."""

import hmac
import re
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rrcm.core.errors import ConfigError

OPEN = {"/health"}  # for monitoring without the token
LEAST, MOST = 16, 4096  # characters
FORM = re.compile(rb"[A-Za-z0-9._~+/-]+=*")  # of RFC 6750
DETAIL = "send the token of this server, as `Authorization: Bearer TOKEN`"


def read(file: Path) -> bytes:
    """Read the token in a file; white space around it is ignored.

    Raises:
        ConfigError: There is no such file, or its content is too short or not a token.
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
    """Answers 401 to requests without the token, before reading their bodies."""

    def __init__(self, app: ASGIApp, token: bytes) -> None:
        """Wrap ``app``."""
        self.app = app
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if (
            scope["type"] != "http"
            or scope["path"] in OPEN
            or self._has_token(Headers(scope=scope))
        ):
            await self.app(scope, receive, send)
            return
        headers = {"WWW-Authenticate": "Bearer", "Connection": "close"}
        await JSONResponse({"detail": DETAIL}, 401, headers)(scope, receive, send)

    def _has_token(self, headers: Headers) -> bool:
        kind, _, token = headers.get("authorization", "").partition(" ")
        said = token.strip().encode("latin-1")
        return kind.lower() == "bearer" and hmac.compare_digest(said, self.token)
