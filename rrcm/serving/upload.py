"""The picture in a request: its bytes, alone or in a form, and its pixels; both are limited."""

from collections.abc import AsyncGenerator
from io import BytesIO
from typing import Any

import numpy as np
from fastapi import HTTPException, Request
from PIL import Image
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from rrcm.core.errors import DataError
from rrcm.data import picture_files
from rrcm.data.splits import pictures
from rrcm.data.splits.pictures import Fit

FORMATS = ("PNG", "JPEG")
TYPES = ("image/png", "image/jpeg", "application/octet-stream")
FORM, FIELD = "multipart/form-data", "image"  # as browsers and `curl -F` send it
PIXELS = 2**24  # of the largest picture, width times height
NAME = "the picture"  # in errors
_WANTED = f"Send one file, in the field {FIELD!r} (`curl -F {FIELD}=@FILE`)"

_BINARY = {"type": "string", "format": "binary"}
_FIELDS = {
    "type": "object",
    "required": [FIELD],
    "properties": {FIELD: _BINARY},
    "additionalProperties": False,
}
DESCRIPTION: dict[str, Any] = {  # for OpenAPI
    "required": True,
    "description": f"The bytes of a {' or '.join(FORMATS)} file, alone or in a form.",
    "content": {kind: {"schema": _BINARY} for kind in TYPES} | {FORM: {"schema": _FIELDS}},
}


async def read(request: Request, *, most: int) -> bytes:
    """The bytes of the picture in a request, whose body may have ``most`` bytes.

    Raises:
        HTTPException: The content type is not one of a picture, or the body is empty or too long.
        DataError: The form is damaged, or has not one field, ``image``, alone.
        ClientDisconnect: The client closed its connection before the end of the body.
    """
    kind = request.headers.get("content-type", TYPES[-1]).partition(";")[0].strip().lower()
    if kind not in (*TYPES, FORM):
        raise HTTPException(
            415,
            f"Content-Type {kind!r}: send the bytes of the picture alone, as "
            f"{', '.join(TYPES[:-1])} or {TYPES[-1]}, or a form, as {FORM}",
        )
    body = await _body(request, most)
    return await _from_form(request, body) if kind == FORM else body


async def _body(request: Request, most: int) -> bytes:
    """The body; uvicorn reads and drops the rest of one that is too long, so the client hears."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise HTTPException(413, f"the body is longer than {most:,} bytes")
    if not body:
        raise HTTPException(422, "an empty body; send the bytes of a picture")
    return bytes(body)


async def _from_form(request: Request, body: bytes) -> bytes:
    async def content() -> AsyncGenerator[bytes, None]:
        yield body
        if not parser.items:
            raise MultiPartException("It is damaged or cut off.")  # the parser closes its files

    parser = MultiPartParser(request.headers, content(), max_files=1, max_fields=0)
    parser.spool_max_size = len(body)  # nothing is written to a file
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise DataError(f"the form: {error.message} {_WANTED}") from None
    try:
        file = form.get(FIELD)
        if not isinstance(file, UploadFile):
            raise DataError(f"the form: {_WANTED}")
        return await file.read()
    finally:
        await form.close()


def pixels(body: bytes, fit: Fit) -> np.ndarray:
    """The pixels of a picture, uint8 of ``fit.shape``; its size is looked at before it is decoded.

    Raises:
        HTTPException: It has more than `PIXELS` pixels.
        DataError: It is neither PNG nor JPEG, damaged, or of a size that ``fit`` refuses.
    """
    try:
        with Image.open(BytesIO(body), formats=FORMATS) as picture:  # reads its head alone
            is_too_large = picture.width * picture.height > PIXELS
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        is_too_large = True
    except pictures.BROKEN:
        raise DataError(f"{NAME}: not a {' or '.join(FORMATS)} file") from None
    if is_too_large:
        raise HTTPException(413, f"{NAME}: more than {PIXELS:,} pixels")
    return picture_files.read(BytesIO(body), fit, name=NAME)
