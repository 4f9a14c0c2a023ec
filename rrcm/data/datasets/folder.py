"""Datasets of the user's own pictures, one folder per class; the files stay where they are."""

import re
from functools import partial
from pathlib import Path

from rrcm.core.errors import DataError
from rrcm.data.ingest import class_folders, manifest
from rrcm.data.ingest.listing import Origin
from rrcm.data.ingest.manifest import Tree

PARTS = ("train", "test", "val")
PART = re.compile(r"train(ing)?|test(ing)?|val(id(ation)?)?", re.IGNORECASE)  # and not a class
CONTENTS = None  # known when the pictures have been read


def acquire(root: Path, origin: Origin) -> str:
    """Read every picture once, where it is, and write their manifest to ``root``.

    Raises:
        DataError: There is no such folder; as `tree`; or a picture cannot be read.
    """
    _, passed_over = class_folders.contents(origin.folder())
    return "\n".join([*passed_over, manifest.acquire(root, origin, tree(origin.folder()))])


def tree(source: Path) -> Tree:
    """The pictures of ``train/<class>/`` and of ``test/`` or ``val/``; or of ``<class>/`` alone.

    Raises:
        DataError: A class is empty or in one part only, there is one class, both ``test/`` and
            ``val/`` exist, or a folder has another name of a part.
    """
    known = PARTS if (source / PARTS[0]).is_dir() else ()
    for folder in sorted(source.iterdir()):
        if folder.is_dir() and PART.fullmatch(folder.name) and folder.name not in known:
            raise DataError(f"{folder}: a part, by its name; parts are train/, and test/ or val/")
    if not (source / "train").is_dir():
        return class_folders.tree(source, {"train": source})
    folders = [source / name for name in PARTS if (source / name).is_dir()]
    if len(folders) > 2:
        raise DataError(f"{source}: has both test/ and val/; name one of them otherwise")
    return class_folders.tree(source, dict(zip(("train", "test"), folders, strict=False)))


listing = partial(manifest.listing, tree=tree)
