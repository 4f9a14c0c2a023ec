"""Anybody's pictures, in a folder for each class; they stay where they are."""

from pathlib import Path

from rrcm.data import _trees
from rrcm.errors import DataError
from rrcm.raw import manifest
from rrcm.raw.listing import Listing
from rrcm.raw.manifest import Tree


def tree(source: Path) -> Tree:
    """The pictures of ``train/<class>/`` and of ``test/`` or ``val/``; or of ``<class>/`` alone.

    Raises:
        DataError: A class is empty or in one part only, or it is not clear what to hold out.
    """
    if not (source / "train").is_dir():
        return _trees.checked(source, {"train": _trees.classes(source)})
    parts = {"train": _trees.classes(source / "train")}
    own = [name for name in ("test", "val") if (source / name).is_dir()]
    if len(own) > 1:
        raise DataError(f"{source}: has both test/ and val/; name one of them otherwise")
    for name in own:
        parts["test"] = _trees.classes(source / name)
    return _trees.checked(source, parts)


def listing(root: Path, link: Path) -> Listing:
    """Every picture of the manifest in ``root``, by part, class and name."""
    return manifest.listing(root, link, tree)
