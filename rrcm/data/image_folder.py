"""Reads a folder of pictures as a split, with labels from sub-folders or a CSV file, or without."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from rrcm.core.errors import DataError
from rrcm.core.files import read_bytes, uncell
from rrcm.core.labels import UNKNOWN
from rrcm.core.registry import suggest
from rrcm.data.splits.pictures import MAX_VALUE, SUFFIXES, Fit, read
from rrcm.data.splits.shards import Split


@dataclass(frozen=True, kw_only=True, slots=True)
class Folder:
    """A folder of pictures as a split.

    ``files`` [N] are the paths of the split's images relative to the folder. ``left_out`` has a
    line for each unused file, with the reason. The ``idx`` of an image is the position of its file
    among all picture files sorted by path, so that an unreadable file renumbers no other.
    """

    split: Split
    files: list[str]
    left_out: list[str]


def folder(
    root: Path, fit: Fit, *, classes: list[str], named: bool, labels: Path | None, strict: bool
) -> Folder:
    """The pictures of a folder, with their labels if there are any.

    Labels come from ``labels``, a CSV file with the columns ``file`` and ``label``; else from
    sub-folders, one for each class; else they are UNKNOWN.

    Args:
        root: The folder; pictures are found at any depth.
        fit: How pictures are scaled to the model's input.
        classes: Class names in the order of the model's outputs, or numbers if there are no names.
        named: Whether ``classes`` are names.
        labels: The CSV file, if any; files that it does not list are UNKNOWN.
        strict: Whether an unreadable file is an error.

    Raises:
        DataError: No picture can be read, or with ``strict`` one cannot; or a label is no class.
    """
    names = sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.suffix.lower() in SUFFIXES and not path.is_dir()
    )
    if not names:
        raise DataError(
            f"{root}: no pictures here, only {', '.join(sorted(SUFFIXES))} are looked at"
        )
    if labels is not None:
        known = _listed(labels, classes, names)
    else:
        known, classes = _sorted_into_folders(root, names, classes, named=named)
    images = np.empty((len(names), *fit.shape), dtype=np.uint8)
    places: list[int] = []
    left_out: list[str] = []
    for place, name in enumerate(names):
        try:
            images[len(places)] = read(root / name, fit, name=name)
            places.append(place)
        except DataError as error:
            if strict:
                raise
            left_out.append(str(error))
    if not places:
        raise DataError(f"{root}: none of {len(names)} pictures can be used; {left_out[0]}")
    split = Split(
        idx=np.array(places, dtype=np.int64),
        images=images[: len(places)],
        labels=np.array([known[names[place]] for place in places], dtype=np.int64),
        classes=tuple(classes),
        max_value=MAX_VALUE,
    )
    return Folder(split=split, files=[names[place] for place in places], left_out=left_out)


def _listed(path: Path, classes: list[str], names: list[str]) -> dict[str, int]:
    """Labels from a CSV file; a label is a class name or the index of an output."""
    try:
        table = pd.read_csv(io.BytesIO(read_bytes(path)), dtype=str, keep_default_na=False)
        rows = list(zip(table["file"], table["label"], strict=True))
    except (KeyError, ValueError):
        raise DataError(f"{path}: not a CSV file with the columns file and label") from None
    found = dict.fromkeys(names, UNKNOWN)
    for line, (name, label) in enumerate(rows, start=2):
        name = name if name in found else uncell(name)  # as written in our own tables
        if name not in found:
            raise DataError(f"{path}:{line}: there is no picture {name}.{suggest(name, names)}")
        found[name] = _class(label, classes, where=f"{path}:{line}")
    return found


def _class(label: str, classes: list[str], *, where: str) -> int:
    if label in classes:
        return classes.index(label)
    if label.isdecimal() and int(label) < len(classes):
        return int(label)
    raise DataError(
        f"{where}: {label!r} is no class of the {len(classes)} that the model has; give their "
        f"names in the order of its outputs with --classes.{suggest(label, classes)}"
    )


def _sorted_into_folders(
    root: Path, names: list[str], classes: list[str], *, named: bool
) -> tuple[dict[str, int], list[str]]:
    """Labels from the top-level folder of each picture, and the class names of the outputs."""
    folders = sorted({name.partition("/")[0] for name in names if "/" in name})
    loose = [name for name in names if "/" not in name]
    if not folders:
        return dict.fromkeys(names, UNKNOWN), classes
    if loose:
        raise DataError(
            f"{root}: {loose[0]} lies beside folders; pictures are either all in folders of their "
            "class, or none is"
        )
    if not named and not all(folder.isdecimal() for folder in folders):
        if len(folders) != len(classes):
            raise DataError(
                f"{root}: {len(folders)} folders for a model of {len(classes)} classes; give the "
                "names in the order of its outputs with --classes, or labels with --labels"
            )
        classes = folders
    of = {folder: _class(folder, classes, where=f"{root}/{folder}") for folder in folders}
    return {name: of[name.partition("/")[0]] for name in names}, classes
