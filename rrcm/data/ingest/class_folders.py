"""Lists picture files in one folder per class, for the datasets of such files."""

import os
from pathlib import Path

from rrcm.core.errors import DataError
from rrcm.data.ingest.listing import Place
from rrcm.data.ingest.manifest import Tree
from rrcm.data.splits.pictures import SUFFIXES


def classes(root: Path) -> dict[str, list[Place]]:
    """The pictures below each folder of ``root``, at any depth, sorted by name.

    Raises:
        DataError: ``root`` has no folders; or as `files`.
    """
    names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    names = [name for name in names if not name.startswith(".")]
    if not names:
        raise DataError(f"{root}: no folders in it; expected one for each class")
    return {name: files(root / name) for name in names}


def files(root: Path) -> list[Place]:
    """The pictures below ``root``, at any depth, sorted by name; links to folders are followed.

    Raises:
        DataError: A link leads to a folder that is already included, such as its parent.
    """
    found: list[Place] = []
    seen: dict[str, str] = {}
    for folder, _, names in os.walk(root, followlinks=True):
        first = seen.setdefault(os.path.realpath(folder), folder)
        if first != folder:
            raise DataError(f"{folder}: a link to {first}, whose pictures would count twice")
        below = os.path.relpath(folder, root)
        for name in names:
            if os.path.splitext(name)[1].lower() in SUFFIXES:
                place = name if below == "." else f"{below}/{name}".replace(os.sep, "/")
                found.append(Place(place, os.path.join(folder, name)))
    return sorted(found)


def checked(root: Path, tree: Tree) -> Tree:
    """``tree``, after a check that its parts have the same classes and none is empty.

    Raises:
        DataError: A class is empty or missing from a part; names the folder.
    """
    for part, groups in tree.items():
        for name, places in groups.items():
            if not places:
                raise DataError(f"{root}: class folder {part}/{name} has no pictures")
    train = tree["train"].keys()
    for part, groups in tree.items():
        for name in sorted(train ^ groups.keys()):
            have, lack = ("train", part) if name in train else (part, "train")
            raise DataError(f"{root}: class folder {name} is in {have}, but missing from {lack}")
    return tree
