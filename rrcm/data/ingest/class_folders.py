"""Picture files in a folder for each class: what the datasets of such files share."""

import os
from pathlib import Path

from rrcm.core.errors import DataError
from rrcm.data.ingest.listing import Place
from rrcm.data.ingest.manifest import Tree
from rrcm.data.splits.pictures import SUFFIXES


def classes(root: Path) -> dict[str, list[Place]]:
    """The pictures below each folder of ``root``, at any depth, by name.

    Raises:
        DataError: There are no folders in it; or as `files`.
    """
    names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    names = [name for name in names if not name.startswith(".")]
    if not names:
        raise DataError(f"{root}: no folders in it; expected one for each class")
    return {name: files(root / name) for name in names}


def files(root: Path) -> list[Place]:
    """The pictures below ``root``, at any depth, by name; links to folders are followed.

    Raises:
        DataError: A link leads to a folder that is there already, such as one above it.
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
    """``tree``, whose parts have the same classes, none of them empty.

    Raises:
        DataError: They have not; names the folder.
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
