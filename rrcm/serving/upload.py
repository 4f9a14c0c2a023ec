"""The picture in a form (``multipart/form-data``), as browsers and ``curl -F`` send it."""

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from rrcm.core.errors import DataError

TYPE = "multipart/form-data"
FIELD = "image"
LONGEST = 70  # characters of a boundary, by RFC 2046
WANTED = f"the form: send one field, {FIELD!r}, with the picture (`curl -F {FIELD}=@FILE`)"


def boundary(content_type: str) -> bytes:
    """The boundary that the ``Content-Type`` of a form names.

    Raises:
        DataError: It names none, or one that is too long.
    """
    found = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not 1 <= len(found) <= LONGEST:
        raise DataError(f"the form: Content-Type must name a boundary of 1 to {LONGEST} characters")
    return found


def picture(body: bytes, boundary: bytes) -> bytes:
    """The content of the only field of the form ``body``, which must be ``image``.

    Raises:
        DataError: The form is damaged or cut off, or has other fields, or several.
    """
    form = _Form()
    parser = MultipartParser(
        boundary,
        {
            "on_part_begin": form.part_begin,
            "on_header_begin": form.header_begin,
            "on_header_field": form.header_name,
            "on_header_value": form.header_value,
            "on_header_end": form.header_end,
            "on_part_data": form.data,
            "on_end": form.end,
        },
    )
    try:
        parser.write(body)
        parser.finalize()
    except MultipartParseError:
        raise DataError("the form: damaged or cut off") from None
    if not form.ended:
        raise DataError("the form: damaged or cut off")
    if form.name != FIELD.encode():
        raise DataError(WANTED)
    return bytes(form.content)


class _Form:
    """What a parser has read; refuses a second part when it begins."""

    def __init__(self) -> None:
        self.parts, self.ended = 0, False
        self.name: bytes | None = None
        self.content = bytearray()
        self._header = (bytearray(), bytearray())

    def part_begin(self) -> None:
        self.parts += 1
        if self.parts > 1:
            raise DataError(WANTED)

    def header_begin(self) -> None:
        self._header = (bytearray(), bytearray())

    def header_name(self, data: bytes, start: int, end: int) -> None:
        self._header[0].extend(data[start:end])

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1].extend(data[start:end])

    def header_end(self) -> None:
        name, value = self._header
        if name.lower() == b"content-disposition":
            self.name = parse_options_header(bytes(value))[1].get(b"name")

    def data(self, data: bytes, start: int, end: int) -> None:
        self.content += data[start:end]

    def end(self) -> None:
        self.ended = True
