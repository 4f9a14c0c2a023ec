"""Datasets of the user's own pictures, one folder per class; the files stay where they are."""

from functools import partial
from pathlib import Path

from rrcm.core.errors import DataError
from rrcm.data.ingest import class_folders, manifest
from rrcm.data.ingest.listing import Origin
from rrcm.data.ingest.manifest import Tree

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
        DataError: A class is empty or in one part only, or both ``test/`` and ``val/`` exist.
    """
    if not (source / "train").is_dir():
        return class_folders.tree(source, {"train": source})
    folders = [source / name for name in ("train", "test", "val") if (source / name).is_dir()]
    if len(folders) > 2:
        raise DataError(f"{source}: has both test/ and val/; name one of them otherwise")
    return class_folders.tree(source, dict(zip(("train", "test"), folders, strict=False)))


listing = partial(manifest.listing, tree=tree)
