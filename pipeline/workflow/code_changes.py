"""Says where the code differs from that which a stage ran on, by what git has of both."""

import hashlib
import json
from pathlib import Path

from pipeline.runtime import code
from pipeline.workflow import git
from rrcm.core.errors import StageError

VERSIONS = 50  # of a file that are looked at


def places(path: str, text: str, recorded: str) -> list[str]:
    """The files that differ, each with a definition, such as ``rrcm/core/files.py (`MOST`)``.

    Args:
        path: A file below ``code/``. Another dependency is its own place.
        text: What it should have now; empty for another dependency.
        recorded: DVC's hash of it when the stage ran.
    """
    for content in git.versions(path, VERSIONS) if text else ():
        if hashlib.md5(content).hexdigest() == recorded:
            now, then = json.loads(text), json.loads(content)
            changed = [file for file in now | then if now.get(file) != then.get(file)]
            return [_definition(file, then.get(file)) for file in sorted(changed)]
    return [path]


def _definition(file: str, digest: str | None) -> str:
    """A file, with the first of its definitions that differs from the version with ``digest``."""
    if digest is None or not file.endswith(".py") or not Path(file).is_file():
        return file
    now = code.definitions(Path(file).read_bytes())
    for source in git.versions(file, VERSIONS):
        try:
            if code.read(file, source)[0] != digest:
                continue
        except StageError:  # a version that is no Python
            continue
        then = code.definitions(source)
        changed = [name for name in now | then if now.get(name) != then.get(name)]
        return f"{file} (`{changed[0]}`)" if changed else file
    return file
