"""The journal keeps votes during sampling, so that a killed process resumes from it.

Its lines are those of a votes file, each an image as far as it was sampled. A later line of an
image replaces an earlier one; a last line torn by a crash is cut off.
"""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rrcm.certification.votes.records import Header, Row, encode, same, scan
from rrcm.core.errors import VotesError
from rrcm.core.files import naming, read_bytes

SYNC = 1.0  # seconds between fsyncs: what a crash of the machine may lose


class InMemoryJournal:
    """Votes during sampling, kept in memory alone."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}

    def append(self, row: Row) -> None:
        """Add or replace the row of an image."""
        self.rows[row.idx] = row

    def void(self) -> None:
        """Remove all rows."""
        self.rows.clear()


class Journal(InMemoryJournal):
    """An open journal file, to which rows are appended."""

    def __init__(self, path: Path, header: Header) -> None:
        """Open or create ``path``; ``rows`` has its latest row of each image.

        Raises:
            VotesError: It has another header, or is damaged.
        """
        super().__init__()
        if path.exists():
            whole = read_bytes(path, VotesError).rfind(b"\n") + 1
            os.truncate(path, whole)  # without a line that a crash tore
        if path.exists() and path.stat().st_size:
            written, rows, _ = scan(path)
            same(path, written, header)
            self.rows = {row.idx: row for row in rows}
        self.path, self.file = path, path.open("a", encoding="utf-8", newline="\n")
        self.synced = time.monotonic()
        if self.file.tell() == 0:
            self.file.write(encode(header))

    def __enter__(self) -> "Journal":
        return self

    def append(self, row: Row) -> None:
        """Add or replace the row of an image."""
        super().append(row)
        with naming(self.path):
            self.file.write(encode(row))
            self.file.flush()
        if time.monotonic() - self.synced > SYNC:
            os.fsync(self.file.fileno())
            self.synced = time.monotonic()

    def void(self) -> None:
        """Remove all rows, and empty the file."""
        super().void()
        self.file.truncate(0)

    def complete(self, rows: Iterable[Row]) -> None:
        """Append those rows whose images are not finished here."""
        for row in rows:
            if not (row.idx in self.rows and self.rows[row.idx].stop):
                self.append(row)

    def __exit__(self, *error: object) -> None:
        try:
            with naming(self.path):
                self.file.flush()
                os.fsync(self.file.fileno())
        finally:
            with suppress(OSError):  # it closes the file anyway, and fsync has reported the error
                self.file.close()
