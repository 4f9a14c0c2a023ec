"""params.yaml as every command and every stage reads it: checked as a whole, components included.

Components are heavy to import, and a stage may take but a second. So a file that was once found
right is not checked again until it, or the library, is another.
"""

import hashlib
from contextlib import suppress
from pathlib import Path

import rrcm
from rrcm import checking, params
from rrcm.config import PARAMS
from rrcm.files import read_bytes, write_text
from rrcm.params import Params

RIGHT = Path(".rrcm/checked")  # the digest of what was found right


def load() -> Params:
    """params.yaml of this checkout: all of it understood, whatever part of it is asked for.

    Raises:
        ConfigError: It is not; the dotted place, the value, and what there is instead.
    """
    return examined()[0]


def examined() -> tuple[Params, list[str]]:
    """The same, and which components could not be asked, for want of a package."""
    digest = _digest()  # before it is read: an edit made meanwhile is checked next time
    whole, missing = params.load(), []
    if not (RIGHT.is_file() and RIGHT.read_bytes() == digest.encode()):
        missing = checking.check(whole)
        if not missing:
            with suppress(OSError):  # a checkout that may only be read
                write_text(RIGHT, digest)
    return whole, missing


def _digest() -> str:
    """SHA-256 of params.yaml and of the library that reads it."""
    library = Path(rrcm.__file__).parent
    files = [PARAMS, *sorted(library.rglob("*.py"))] if PARAMS.exists() else []
    found = hashlib.sha256()
    for file in files:
        found.update(f"{file.name} {file.stat().st_size} ".encode() + read_bytes(file))
    return found.hexdigest()
