"""ImageNet, ILSVRC2012: 1,281,167 training and 50,000 validation pictures of 1,000 classes.

Source: Russakovsky et al. (2015), "ImageNet Large Scale Visual Recognition Challenge". The pictures
stay where they are, in folders or in the official archives, which are read in place. Classes are
sorted WordNet ids, the usual order. The validation pictures are the test split.
"""

import gzip
import hashlib
import io
import re
import tarfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from rrcm.core import progress
from rrcm.core.errors import DataError, one_line
from rrcm.core.files import read_bytes, unzipped
from rrcm.data.ingest import class_folders, manifest
from rrcm.data.ingest.listing import Contents, Listing, Place
from rrcm.data.ingest.manifest import Tree
from rrcm.data.ingest.origin import Origin

TRAIN, VAL = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
MD5 = {  # as torchvision.datasets.ImageNet has them
    TRAIN: "1d675b47d978889d74fa0da5fadfb00e",
    VAL: "29b22e2961454d5413ddabcf34fc5622",
    DEVKIT: "fa75699e90414af021442c21a62c3abf",
}
# A picture's bytes: those of the official archives by their number of pictures.
CONTENTS = Contents(train=1_281_167, test=50_000, classes=1000, bytes=116_000)
META, TRUTH = "meta.mat", "ILSVRC2012_validation_ground_truth.txt"
UNZIPPED = 2**26  # most bytes of the unpacked devkit; the official one has 3 million
BLOCK = 1 << 24


def acquire(root: Path, origin: Origin) -> str:
    """Read every picture once, in its folder or archive, and write their manifest to ``root``.

    Raises:
        DataError: There is no such folder; an archive or the numbers of pictures are not the
            official ones, if these are asked for; as `tree`; or a picture cannot be read.
    """
    source = origin.folder()
    if origin.verify:
        size = sum(path.stat().st_size for path in archives(source))
        with progress.bar(size, 0, "MD5", "B") as shown:
            for done in verify(source):
                shown.update(done - shown.n)
    pictures = tree(source)
    if origin.verify:
        complete(source, pictures)
    return manifest.acquire(root, origin, pictures)


def archives(source: Path) -> list[Path]:
    """The official archives that exist in ``source``."""
    return [source / name for name in MD5 if (source / name).is_file()]


def verify(source: Path) -> Iterator[int]:
    """Check the archives against their official MD5s; yields how many bytes have been read.

    Raises:
        DataError: An archive is not the official file.
    """
    done = 0
    for path in archives(source):
        md5 = hashlib.md5(usedforsecurity=False)
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                md5.update(block)
                yield (done := done + len(block))
        if md5.hexdigest() != MD5[path.name]:
            raise DataError(
                f"{path}: MD5 is {md5.hexdigest()}, that of the official file {MD5[path.name]}: it "
                "is truncated or another; fetch it again, or --no-verify"
            )


def complete(source: Path, tree: Tree) -> None:
    """Check the numbers of classes and pictures against the official ones.

    Raises:
        DataError: There are more or fewer.
    """
    for part, count in (("train", CONTENTS.train), ("test", CONTENTS.test)):
        images = sum(map(len, tree[part].values()))
        if (len(tree[part]), images) != (CONTENTS.classes, count):
            raise DataError(
                f"{source}: {images:,} {part} pictures of {len(tree[part]):,} classes, where "
                f"ILSVRC2012 has {count:,} of {CONTENTS.classes:,}; complete it, or --no-verify"
            )


def tree(source: Path) -> Tree:
    """The pictures of the folders or archives in ``source``.

    Raises:
        DataError: A class is empty or in one part only, or an archive is truncated.
    """
    train = _in_tar_of_tars(source / TRAIN) if (source / TRAIN).exists() else None
    parts = {"train": train or class_folders.classes(source / "train"), "test": _validation(source)}
    return class_folders.checked(source, parts)


def listing(root: Path, link: Path) -> Listing:
    """Every picture of the manifest in ``root``, sorted by part, class and name."""
    return manifest.listing(root, link, tree)


def _validation(source: Path) -> dict[str, list[Place]]:
    """The validation pictures by class, from their folders or else from the ground truth."""
    if (source / VAL).exists():
        places = _in_tar(source / VAL)
    elif any(path.is_dir() for path in (source / "val").glob("*")):
        return class_folders.classes(source / "val")
    else:
        places = class_folders.files(source / "val")
    truth = _ground_truth(source)
    if len(places) != len(truth):
        raise DataError(
            f"{source}: {len(places)} validation pictures, but the ground truth is of {len(truth)}"
        )
    found = defaultdict(list)
    for place in sorted(places):
        number = re.fullmatch(r"(?:.*/)?ILSVRC2012_val_(\d{8})\.JPEG", place.name)
        if not number or not 1 <= int(number[1]) <= len(truth):
            raise DataError(f"{place}: expected ILSVRC2012_val_00000001.JPEG and so on")
        found[truth[int(number[1]) - 1]].append(place)
    return dict(sorted(found.items()))


def _ground_truth(source: Path) -> list[str]:
    """The WordNet id of each validation picture, from the devkit or its archive."""
    packed, folder = source / DEVKIT, source / DEVKIT.removesuffix(".tar.gz") / "data"
    try:
        if packed.exists():
            meta, truth = _devkit(packed)
        else:
            hint = f"; val/ has no folders for classes, which then takes {DEVKIT} to tell"
            meta, truth = (read_bytes(folder / name, hint=hint) for name in (META, TRUTH))
        synsets = loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"]
        wnids = {int(s["ILSVRC2012_ID"]): str(s["WNID"]) for s in synsets if not s["num_children"]}
        return [wnids[int(line)] for line in truth.split()]
    except (gzip.BadGzipFile, EOFError, zlib.error, tarfile.TarError) as error:
        raise DataError(f"{packed}: truncated or damaged ({error})") from None
    except (ValueError, KeyError, TypeError, IndexError, MatReadError) as error:
        said = one_line(error)
        raise DataError(f"{source}: the devkit's {META} or {TRUTH} is damaged ({said})") from None


def _devkit(path: Path) -> tuple[bytes, bytes]:
    whole = unzipped(read_bytes(path), path, most=UNZIPPED)  # verifies its checksum
    with tarfile.open(fileobj=io.BytesIO(whole), mode="r:") as tar:
        files = ((m.name, tar.extractfile(m)) for m in tar if m.isfile())
        found = {Path(name).name: file for name, file in files if file}
        return found[META].read(UNZIPPED), found[TRUTH].read(UNZIPPED)


def _in_tar_of_tars(path: Path) -> dict[str, list[Place]]:
    """The pictures in an archive that contains one archive per class, ``<wnid>.tar``."""
    found = {}
    with path.open("rb") as file, _whole(file, str(path)) as (outer, members):
        for member in members:
            name = f"{path}:{member.name}"
            inside = outer.extractfile(member)
            assert inside  # only a link or a folder has none
            with inside, _whole(inside, name) as (_, images):
                found[Path(member.name).stem] = sorted(
                    Place(m.name, str(path), member.offset_data + m.offset_data, m.size)
                    for m in images
                )
    return dict(sorted(found.items()))


def _in_tar(path: Path) -> list[Place]:
    with path.open("rb") as file, _whole(file, str(path)) as (_, members):
        return [Place(Path(m.name).name, str(path), m.offset_data, m.size) for m in members]


@contextmanager
def _whole(file: IO[bytes], name: str) -> Iterator[tuple[tarfile.TarFile, list[tarfile.TarInfo]]]:
    """An open tar and its files, after a check that it is not truncated."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    try:
        tar = tarfile.open(fileobj=file, mode="r:")
        members = [member for member in tar if member.isfile()]
    except tarfile.TarError as error:
        raise DataError(f"{name}: truncated or no tar ({error}); fetch it again") from None
    if tar.offset + tarfile.BLOCKSIZE > size:  # a block of zeros ends a tar
        raise DataError(f"{name}: truncated, its end is missing; fetch it again")
    with tar:
        yield tar, members
