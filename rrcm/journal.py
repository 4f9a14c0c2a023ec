"""Votes while they are drawn: what was appended survives the death of the process.

The lines are those of a votes file. Each is an image as far as it was drawn; a later line of an
image replaces an earlier one, and a last line torn by a crash is cut off.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from rrcm.errors import VotesError
from rrcm.files import naming, read_bytes
from rrcm.votes import Header, Row, encode, same, scan

SYNC = 1.0  # seconds of drawing that a crash of the machine may cost; of the process, none


class Memory:
    """What a `Journal` has, of votes that nobody will go on from."""

    def __init__(self) -> None:
        """Begin without any image."""
        self.rows: dict[int, Row] = {}

    def append(self, row: Row) -> None:
        """Add an image, as far as it has been drawn."""
        self.rows[row.idx] = row


class Journal(Memory):
    """An open file of votes, to which images are appended."""

    def __init__(self, path: Path, header: Header) -> None:
        """Open or begin ``path``; ``rows`` is what it has, image -> latest row.

        Raises:
            VotesError: It was made by another classifier or with other settings, or is damaged.
        """
        super().__init__()
        if path.exists():
            whole = read_bytes(path, VotesError).rfind(b"\n") + 1
            os.truncate(path, whole)  # without a line that a crash tore
        if path.exists() and path.stat().st_size:
            found, rows, _ = scan(path)
            same(path, found, header)
            self.rows = {row.idx: row for row in rows}
        self.path, self.file = path, path.open("a", encoding="utf-8", newline="\n")
        self.synced = time.monotonic()
        if self.file.tell() == 0:
            self.file.write(encode(header))

    def __enter__(self) -> "Journal":
        """A context that closes the file."""
        return self

    def append(self, row: Row) -> None:
        """Add an image, as far as it has been drawn."""
        super().append(row)
        with naming(self.path):
            self.file.write(encode(row))
            self.file.flush()
        if time.monotonic() - self.synced > SYNC:
            os.fsync(self.file.fileno())
            self.synced = time.monotonic()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Sync and close."""
        try:
            with naming(self.path):
                self.file.flush()
                os.fsync(self.file.fileno())
        finally:
            with suppress(OSError):  # which closes it, and has been said
                self.file.close()
