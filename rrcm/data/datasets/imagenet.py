"""ImageNet, ILSVRC2012: 1,281,167 training and 50,000 validation pictures of 1,000 classes.

Source: Russakovsky et al. (2015), "ImageNet Large Scale Visual Recognition Challenge". The pictures
stay where they are, in ``train/<wnid>/`` and ``val/<wnid>/``, into which torchvision unpacks the
official archives. Classes are sorted WordNet ids, the usual order. The validation pictures are the
test split.
"""

from functools import partial
from pathlib import Path

from rrcm.core.errors import DataError
from rrcm.data.ingest import class_folders, manifest
from rrcm.data.ingest.listing import Contents, Origin
from rrcm.data.ingest.manifest import Tree

PARTS = {"train": "train", "test": "val"}  # split -> its folder
CONTENTS = Contents(train=1_281_167, test=50_000, classes=1000)


def acquire(root: Path, origin: Origin) -> str:
    """Read every picture once, where it is, and write their manifest to ``root``.

    Raises:
        DataError: There is no such folder; the numbers of classes and pictures are not the official
            ones, if these are asked for; as `tree`; or a picture cannot be read.
    """
    source = origin.folder()
    pictures = tree(source)
    official = {"train": CONTENTS.train, "test": CONTENTS.test}
    for part, count in official.items() if origin.verify else ():
        sizes = [len(places) for (of, _), places in pictures.items() if of == part]
        if (len(sizes), sum(sizes)) != (CONTENTS.classes, count):
            raise DataError(
                f"{source}: {sum(sizes):,} {part} pictures of {len(sizes):,} classes, where "
                f"ILSVRC2012 has {count:,} of {CONTENTS.classes:,}; complete it, or --no-verify"
            )
    return manifest.acquire(root, origin, pictures)


def tree(source: Path) -> Tree:
    """The pictures of the folders of both parts.

    Raises:
        DataError: A folder is missing; a class is empty or in one part only.
    """
    folders = {part: source / name for part, name in PARTS.items()}
    for folder in folders.values():
        if not folder.is_dir():
            raise DataError(
                f"{folder}: not found; `torchvision.datasets.ImageNet` unpacks the "
                "official archives into the folders train/ and val/"
            )
    return class_folders.tree(source, folders)


listing = partial(manifest.listing, tree=tree)
