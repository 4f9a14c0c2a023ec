"""The bearer tokens of a server; without one, a request is refused except for ``/health``."""

import hmac
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rrcm.core.errors import ConfigError
from rrcm.core.files import read_bytes

OPEN = {"/health"}  # for monitoring without the token
LEAST, MOST = 16, 4096  # characters
LARGEST = 2**20  # bytes of a file
FORM = re.compile(rb"[A-Za-z0-9._~+/-]+=*")  # of RFC 6750
DETAIL = "send a token of this server, as `Authorization: Bearer TOKEN`"


def read(file: Path) -> tuple[bytes, ...]:
    """Read the tokens in a file, one a line; empty lines and those that begin with # are skipped.

    Raises:
        ConfigError: There is no such file, it has no token, or a line is too short or no token; the
            error names the line, and does not show it.
    """
    try:
        text = read_bytes(file, ConfigError, most=LARGEST)
    except ConfigError as error:
        raise ConfigError(f"--token-file {error}") from None
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
    tokens = [(number, line) for number, line in lines if line and not line.startswith(b"#")]
    for number, token in tokens or [(1, b"")]:
        if not LEAST <= len(token) <= MOST or not FORM.fullmatch(token):
            raise ConfigError(
                f"--token-file {file}: line {number}: expected a token of {LEAST} to {MOST:,} "
                "letters, digits and -._~+/; `openssl rand -hex 32` makes one"
            )
    return tuple(token for _, token in tokens)


def is_exposed(file: Path) -> bool:
    """Whether users of this machine other than the file's owner and group may read or write it."""
    return bool(file.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH))


class Guard:
    """Answers 401 to requests without a token, before reading their bodies."""

    def __init__(self, app: ASGIApp, tokens: Sequence[bytes]) -> None:
        """Wrap ``app``."""
        self.app = app
        self.tokens = tokens

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
        sent = token.strip().encode("latin-1")
        matches = [hmac.compare_digest(sent, token) for token in self.tokens]  # all, each time
        return kind.lower() == "bearer" and any(matches)
