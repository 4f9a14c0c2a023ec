"""Loads params.yaml for every command and stage, checked as a whole, components included.

Importing components is slow, and a stage may take only a second. So a file that was found valid is
not checked again until it or the library changes.
"""

import hashlib
from contextlib import suppress
from pathlib import Path

import rrcm
from rrcm.cli import checking
from rrcm.config import params
from rrcm.config.params import Params
from rrcm.config.sections import PARAMS
from rrcm.core.files import read_bytes, write_text

VALID = Path(".rrcm/checked")  # the digest of a file and library that were found valid


def load() -> Params:
    """Load params.yaml of the current folder, after a check of all its sections.

    Raises:
        ConfigError: It is not valid; names the dotted place, the value, and the way out.
    """
    return examined()[0]


def examined() -> tuple[Params, list[str]]:
    """Like `load`; also return the components not checked because a package is missing."""
    digest = _digest()  # before reading the file: an edit made meanwhile is checked next time
    whole, missing = params.load(), []
    if not (VALID.is_file() and VALID.read_bytes() == digest.encode()):
        missing = checking.check(whole)
        if not missing:
            with suppress(OSError):  # a read-only checkout
                write_text(VALID, digest)
    return whole, missing


def _digest() -> str:
    """Return the SHA-256 of params.yaml and of the library that reads it."""
    library = Path(rrcm.__file__).parent
    files = [PARAMS, *sorted(library.rglob("*.py"))] if PARAMS.exists() else []
    found = hashlib.sha256()
    for file in files:
        found.update(f"{file.name} {file.stat().st_size} ".encode() + read_bytes(file))
    return found.hexdigest()
