"""The bearer tokens of a server; without one, only ``/`` and ``/health`` are answered."""

import hmac
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated

from fastapi import Depends, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from rrcm.core.errors import ConfigError
from rrcm.core.files import read_bytes

LARGEST = 2**20  # bytes of a file
FORM = re.compile(rb"[A-Za-z0-9._~+/-]{16,4096}=*")  # of RFC 6750
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
        if not FORM.fullmatch(token):
            raise ConfigError(
                f"--token-file {file}: line {number}: expected a token of 16 to 4,096 letters, "
                "digits and -._~+/; `openssl rand -hex 32` makes one"
            )
    return tuple(token for _, token in tokens)


def guard(tokens: Sequence[bytes]) -> Callable[..., Awaitable[None]]:
    """A dependency of endpoints that answers 401 without a token, before the body is read."""
    bearer = HTTPBearer(auto_error=False)

    async def require(
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
    ) -> None:
        sent = credentials.credentials.encode("latin-1") if credentials else b""
        matches = [hmac.compare_digest(sent, token) for token in tokens]  # all, each time
        if not any(matches):
            headers = {"WWW-Authenticate": "Bearer", "Connection": "close"}
            raise HTTPException(401, DETAIL, headers)

    return require
