"""Lists picture files in one folder per class, for the datasets of such files."""

import os
from pathlib import Path

from rrcm.core.errors import DataError
from rrcm.data.ingest.listing import Place
from rrcm.data.ingest.manifest import Tree
from rrcm.data.splits.pictures import SUFFIXES

SHOWN = 5  # names of files that are no pictures


def classes(root: Path) -> dict[str, list[Place]]:
    """The pictures below each folder of ``root``, at any depth, sorted by name.

    Raises:
        DataError: ``root`` has no folders, or pictures beside them; or as `contents`.
    """
    if loose := [
        entry.name for entry in os.scandir(root) if entry.is_file() and _is_one(entry.name)
    ]:
        raise DataError(f"{root}: pictures of no class, beside its folders: {min(loose)}")
    names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    names = [name for name in names if not name.startswith(".")]
    if not names:
        raise DataError(f"{root}: no folders in it; expected one for each class")
    return {name: contents(root / name)[0] for name in names}


def contents(root: Path) -> tuple[list[Place], list[str]]:
    """The pictures below ``root``, at any depth, sorted, and lines on what is passed over.

    Links to folders are followed. Passed over are files that are no pictures, and hidden files and
    folders, whose names begin with a dot.

    Raises:
        DataError: A link leads to a folder that is already included, such as its parent.
    """
    found: list[Place] = []
    others: list[str] = []
    hidden = 0
    seen: dict[str, str] = {}
    for folder, folders, names in os.walk(root, followlinks=True):
        hidden += sum(name.startswith(".") for name in (*folders, *names))
        folders[:] = [name for name in folders if not name.startswith(".")]
        first = seen.setdefault(os.path.realpath(folder), folder)
        if first != folder:
            raise DataError(f"{folder}: a link to {first}, whose pictures would count twice")
        below = os.path.relpath(folder, root)
        for name in names:
            place = name if below == "." else f"{below}/{name}".replace(os.sep, "/")
            if name.startswith("."):
                continue
            if _is_one(name):
                found.append(Place(place, os.path.join(folder, name)))
            else:
                others.append(place)
    lines = []
    if hidden:
        lines.append(f"hidden files and folders passed over: {hidden:,}")
    if others:
        some, more = ", ".join(sorted(others)[:SHOWN]), ", …" if others[SHOWN:] else ""
        lines.append(f"no pictures that can be read: {len(others):,} files ({some}{more})")
    return sorted(found), lines


def _is_one(name: str) -> bool:
    """Whether a file is a picture, by its name."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES


def tree(root: Path, folders: dict[str, Path]) -> Tree:
    """The pictures in the class folders of each part, which lies in its own of ``folders``.

    Raises:
        DataError: As `classes`; or a class is empty, missing from a part, or the only one; names
            the folder.
    """
    parts = {part: classes(folder) for part, folder in folders.items()}
    found = {(part, name): places for part, own in parts.items() for name, places in own.items()}
    for (part, name), places in found.items():
        if not places:
            raise DataError(f"{root}: class folder {part}/{name} has no pictures")
    train = parts["train"].keys()
    if len(train) < 2:
        raise DataError(f"{root}: one class folder, {min(train)}; is it one level too high?")
    for part, own in parts.items():
        for name in sorted(train ^ own.keys()):
            have, lack = ("train", part) if name in train else (part, "train")
            raise DataError(f"{root}: class folder {name} is in {have}, but missing from {lack}")
    return found
