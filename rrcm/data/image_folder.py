"""Reads a folder of pictures as a split, with labels from sub-folders or a CSV file, or without."""

import io
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from rrcm.core.errors import DataError
from rrcm.core.files import read_bytes, uncell
from rrcm.core.labels import UNKNOWN
from rrcm.core.registry import suggest
from rrcm.core.schema import listed
from rrcm.data import duplicates
from rrcm.data.ingest import class_folders
from rrcm.data.splits.pictures import MAX_VALUE, SUFFIXES, Fit, read
from rrcm.data.splits.shards import Split


@dataclass(frozen=True, kw_only=True, slots=True)
class Folder:
    """A folder of pictures as a split.

    ``files`` [N] are the paths of the split's images relative to the folder. ``left_out`` has a
    line for each unused file, with the reason, and ``passed_over`` has lines on files that were not
    looked at. The ``idx`` of an image is the position of its file among all picture files sorted by
    path, so that an unreadable file renumbers no other. ``duplicates`` has a line if
    pixels of some are those of others.
    """

    split: Split
    files: list[str]
    left_out: list[str]
    passed_over: list[str]
    duplicates: list[str]


def folder(
    root: Path, fit: Fit, *, classes: list[str], named: bool, labels: Path | None, strict: bool
) -> Folder:
    """The pictures of a folder, with their labels if there are any.

    Labels come from ``labels``, a CSV file with the columns ``file`` and ``label``; else from
    sub-folders, one for each class; else they are UNKNOWN.

    Args:
        root: The folder; pictures are found at any depth, and links to folders are followed.
        fit: How pictures are scaled to the model's input.
        classes: Class names in the order of the model's outputs, or numbers if there are no names.
        named: Whether ``classes`` are names.
        labels: The CSV file, if any; files that it does not list are UNKNOWN.
        strict: Whether an unreadable file is an error.

    Raises:
        DataError: No picture can be read, or with ``strict`` one cannot; or a label is no class.
    """
    contents = class_folders.contents(root)
    passed_over = class_folders.passed_over(contents)
    names = [place.name for place in contents.pictures]
    if not names:
        raise DataError(
            f"{root}: no pictures here, only {', '.join(sorted(SUFFIXES))} are looked at"
            + "".join(f"; {line}" for line in passed_over)
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
    files = [names[place] for place in places]
    again = duplicates.line(duplicates.digests(np.asarray(split.images)))
    return Folder(
        split=split,
        files=files,
        left_out=left_out,
        passed_over=passed_over,
        duplicates=again,
    )


def _listed(path: Path, classes: list[str], names: list[str]) -> dict[str, int]:
    """Labels from a CSV file; a label is a class name or the index of an output."""
    text = io.BytesIO(read_bytes(path))
    try:  # blank lines are kept, so that errors name the right one
        table = pd.read_csv(text, dtype=str, keep_default_na=False, skip_blank_lines=False)
        rows = list(zip(table["file"], table["label"], strict=True))
    except (KeyError, ValueError):
        raise DataError(f"{path}: not a CSV file with the columns file and label") from None
    found = dict.fromkeys(names, UNKNOWN)
    alike = {_composed(name): name for name in names}
    outputs, lines = _outputs(classes), dict[str, int]()
    for line, (name, label) in enumerate(rows, start=2):
        if not name and not label:
            continue
        name = name if name in found else uncell(name)  # as written in our own tables
        name = name if name in found else alike.get(_composed(name), name)
        if name not in found:
            raise DataError(f"{path}:{line}: there is no picture {name}.{suggest(name, names)}")
        output = _class(label, outputs, where=f"{path}:{line}")
        if lines.setdefault(name, line) != line and found[name] != output:
            raise DataError(
                f"{path}:{line}: {name} is of class {label!r} here, but of "
                f"{classes[found[name]]!r} in line {lines[name]}"
            )
        found[name] = output
    if not lines:
        raise DataError(f"{path}: no labels in it; without --labels none are needed")
    return found


def _composed(text: str) -> str:
    """``text`` with composed accents: a name that is typed and one on a disk may differ in it."""
    return unicodedata.normalize("NFC", text)


def _outputs(classes: list[str]) -> dict[str, list[int]]:
    """The outputs of each name, which several may have."""
    found: dict[str, list[int]] = {}
    for output, name in enumerate(classes):
        found.setdefault(_composed(name), []).append(output)
    return found


def _class(label: str, outputs: dict[str, list[int]], *, where: str) -> int:
    named, count = outputs.get(_composed(label), []), sum(map(len, outputs.values()))
    if len(named) == 1:
        return named[0]
    if named:
        raise DataError(
            f"{where}: {label!r} is the name of the outputs {listed(map(str, named))}; give a "
            "number instead"
        )
    if label.isdecimal() and int(label) < count:
        return int(label)
    raise DataError(
        f"{where}: {label!r} is no class of the {count} that the model has; give their "
        f"names in the order of its outputs with --classes.{suggest(label, [*outputs])}"
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
    outputs = _outputs(classes)
    of = {folder: _class(folder, outputs, where=f"{root}/{folder}") for folder in folders}
    return {name: of[name.partition("/")[0]] for name in names}, classes
