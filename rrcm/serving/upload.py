"""The picture in a request: its bytes and its pixels; both are limited."""

from io import BytesIO
from typing import Any

import numpy as np
from fastapi import HTTPException, Request
from PIL import Image

from rrcm.core.errors import DataError
from rrcm.data.splits import pictures
from rrcm.data.splits.pictures import Fit

FORMATS = ("PNG", "JPEG", "WEBP")
PIXELS = 2**24  # of the largest picture, width times height
NAME = "the picture"  # in errors
_BINARY = {"schema": {"type": "string", "format": "binary"}}
DESCRIPTION: dict[str, Any] = {  # for OpenAPI
    "required": True,
    "description": f"The bytes of a {' or '.join(FORMATS)} file, of any content type.",
    "content": {f"image/{name.lower()}": _BINARY for name in FORMATS}
    | {"application/octet-stream": _BINARY},
}


async def read(request: Request, *, most: int) -> bytes:
    """The bytes of the picture in a request, whose body may have ``most`` bytes.

    uvicorn reads and drops the rest of a body that is too long, so that the client hears of it.

    Raises:
        HTTPException: The body is empty or too long.
        ClientDisconnect: The client closed its connection before the end of the body.
    """
    too_long = HTTPException(413, f"the body is longer than {most:,} bytes")
    if int(request.headers.get("content-length", "0")) > most:  # h11 lets only digits through
        raise too_long
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise too_long
    if not body:
        raise HTTPException(422, "an empty body; send the bytes of a picture")
    return bytes(body)


def pixels(body: bytes, fit: Fit) -> tuple[np.ndarray, tuple[int, int]]:
    """The pixels of a picture, uint8 of ``fit.shape``, and its own width and height, as by ``fit``.

    Its size is looked at before it is decoded.

    Raises:
        HTTPException: It has more than `PIXELS` pixels.
        DataError: It is of no format in `FORMATS`, damaged, or of a size that ``fit`` refuses.
    """
    try:
        with Image.open(BytesIO(body), formats=FORMATS) as picture:  # reads its head alone
            is_too_large = picture.width * picture.height > PIXELS
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        is_too_large = True
    except pictures.BROKEN:
        raise DataError(
            f"{NAME}: not a {' or '.join(FORMATS)} file; send its bytes alone, as by `curl "
            "--data-binary @FILE`"
        ) from None
    if is_too_large:
        raise HTTPException(413, f"{NAME}: more than {PIXELS:,} pixels")
    sent = pictures.decode(BytesIO(body), fit.shape[0], name=NAME, upright=fit.upright)
    return pictures.as_array(pictures.fitted(sent, fit, name=NAME)), sent.size
