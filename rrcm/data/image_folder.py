"""Reads a folder of pictures as a split, with labels from sub-folders or a CSV file, or without."""

import io
import posixpath
import re
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd

from rrcm.core import formats
from rrcm.core.errors import DataError
from rrcm.core.files import read_bytes, uncell
from rrcm.core.labels import UNKNOWN, shifted
from rrcm.core.registry import suggest
from rrcm.core.schema import listed
from rrcm.data.ingest import class_folders
from rrcm.data.splits.pictures import MAX_VALUE, SUFFIXES, Fit, read
from rrcm.data.splits.shards import Split

UTF16 = (b"\xff\xfe", b"\xfe\xff")  # how text of this encoding begins
# A class, as a spreadsheet may show it; 1.000 may be a thousand.
NUMBER = re.compile(r"[+-]?\d{1,9}([.,](\d{0,2}|\d{4,9}))?(e[+-]?\d{1,2})?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Folder:
    """A folder of pictures as a split.

    ``files`` [N] are the paths of the split's images relative to the folder. ``left_out`` has a
    line for each unused file, with the reason, and ``passed_over`` has lines on files that were not
    looked at, on folders in the paths of the labels that are not here, and on the order of classes.
    The ``idx`` of an image is the position of its file among all picture files sorted by path, so
    that an unreadable file renumbers no other.
    """

    split: Split
    files: list[str]
    left_out: list[str]
    passed_over: list[str]


def folder(
    root: Path,
    fit: Fit,
    *,
    classes: list[str],
    named: bool,
    labels: Path | None,
    strict: bool,
    natural: bool = False,
) -> Folder:
    """The pictures of a folder, with their labels if there are any.

    Labels come from ``labels``, a CSV file with the columns ``file`` and ``label``, separated by
    commas, semicolons or tabs; its paths may have the separators of Windows, or all of them the
    same folders in front. Else they come from
    sub-folders, one for each class; else they are UNKNOWN.

    Args:
        root: The folder; pictures are found at any depth, and links to folders are followed.
        fit: How pictures are scaled to the model's input.
        classes: Class names in the order of the model's outputs, or numbers if there are no names.
        named: Whether ``classes`` are names.
        labels: The CSV file, if any; files that it does not list are UNKNOWN.
        strict: Whether an unreadable file is an error.
        natural: Whether folders are classes as in timm's data sets, and not in torchvision's: the
            innermost ones, and not the outermost, in another order; see `_natural`.

    Raises:
        DataError: No picture can be read, or with ``strict`` one cannot; or a label is no class.
    """
    pictures, passed_over = class_folders.contents(root)
    names = [place.name for place in pictures]
    if not names:
        raise DataError(
            f"{root}: no pictures here, only {', '.join(sorted(SUFFIXES))} are looked at"
            + "".join(f"; {line}" for line in passed_over)
        )
    if labels is not None:
        known, above = _listed(labels, classes, names)
        if above:
            passed_over.append(f"folders before the paths in {labels}: {above}")
    else:
        known, classes, said = _by_folder(root, names, classes, named=named, natural=natural)
        passed_over += said
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
    return Folder(split=split, files=files, left_out=left_out, passed_over=passed_over)


def _listed(path: Path, classes: list[str], names: list[str]) -> tuple[dict[str, int], str]:
    """Labels from a CSV file, and the root that its paths have before those of the pictures.

    A label is a class name or the index of an output. The first row says what the root is.
    """
    rows = _rows(path)
    found = dict.fromkeys(names, UNKNOWN)
    alike = {_composed(name): name for name in names} | dict(zip(names, names, strict=True))
    outputs, lines, root = _outputs(classes), dict[str, int](), ""
    labels = [label for _, _, label in rows]
    for line, typed, label in rows:
        name = _place(typed, alike, root)
        if name is None and not lines and (root := _root(typed, alike)):
            name = _place(typed, alike, root)
        if name is None:
            raise DataError(f"{path}:{line}: there is no picture {typed}.{suggest(typed, names)}")
        output = _class(label, outputs, where=f"{path}:{line}", among=labels)
        if lines.setdefault(name, line) != line and found[name] != output:
            raise DataError(
                f"{path}:{line}: {name} is of class {label!r} here, but of "
                f"{classes[found[name]]!r} in line {lines[name]}"
            )
        found[name] = output
    if not lines:
        raise DataError(f"{path}: no labels in it; without --labels none are needed")
    return found, root


def _rows(path: Path) -> list[tuple[int, str, str]]:
    """Line, file and label of the rows of a CSV file, as programs and spreadsheets write it."""
    raw, wanted = read_bytes(path), "a CSV file with the columns file and label"
    try:
        text = raw.decode("utf-16" if raw.startswith(UTF16) else "utf-8-sig")
        separator = max(",;\t", key=text.partition("\n")[0].count)
        # blank lines are kept, so that errors name the right one
        table = pd.read_csv(
            io.StringIO(text),
            dtype=str,
            sep=separator,
            keep_default_na=False,
            skip_blank_lines=False,
            skipinitialspace=True,
        )
        columns = [str(name).strip().casefold() for name in table.columns]
        for name in ("file", "label"):
            if columns.count(name) > 1 or f"{name}.1" in columns:  # as pandas names the second
                raise DataError(f"{path}:1: column {name!r} comes twice")
        file, label = (table.iloc[:, columns.index(name)] for name in ("file", "label"))
    except UnicodeDecodeError:
        why = formats.told(path, f"not UTF-8; save it as {wanted}")
        raise DataError(f"{path}: {why}") from None
    except ValueError:
        raise DataError(f"{path}: {formats.told(path, f'not {wanted}')}") from None
    rows = enumerate(zip(file, label, strict=True), start=2)
    return [(line, name, what) for line, (name, what) in rows if what.strip()]


def _spelled(name: str) -> list[str]:
    """What a name in a table may stand for: itself, one of our own tables, ./a//b or a\\b."""
    plain = name.strip()
    return [name, plain, uncell(plain), posixpath.normpath(plain.replace("\\", "/"))]


def _place(name: str, alike: Mapping[str, str], root: str) -> str | None:
    """The picture that a name in a table means, below ``root``; None if there is none."""
    for spelled in _spelled(name):
        below = spelled.removeprefix(root)
        if spelled.startswith(root) and (found := alike.get(below, alike.get(_composed(below)))):
            return found
    return None


def _root(name: str, alike: Mapping[str, str]) -> str:
    """The folders before the path of a picture, ending in a slash; empty if there are none."""
    *_, windows = _spelled(name)
    for place in re.finditer("/", windows):
        if _composed(windows[place.end() :]) in alike:
            return windows[: place.end()]
    return ""


def _composed(text: str) -> str:
    """``text`` with composed accents: a name that is typed and one on a disk may differ in it."""
    return unicodedata.normalize("NFC", text)


def _outputs(classes: list[str]) -> dict[str | Fraction, list[int]]:
    """The outputs of each name, and of each number that is one: several may have it."""
    found: dict[str | Fraction, list[int]] = {}
    for output, name in enumerate(classes):
        found.setdefault(_composed(name), []).append(output)
        if (number := _number(name)) is not None:
            found.setdefault(number, []).append(output)
    return found


def _class(
    label: str, outputs: dict[str | Fraction, list[int]], *, where: str, among: Collection[str]
) -> int:
    """The output of a label, one ``among`` others: a name, also if 7 is written 7.0, +7 or 07.

    Else it is the number of an output; not if there are names that are numbers, but not this one.
    """
    number = _number(label)
    numbers: list[str | Fraction] = [] if number is None else [f"{number}", number]
    for name in (_composed(label), _composed(label.strip()), *numbers):
        named = outputs.get(name, [])
        if len(named) == 1:
            return named[0]
        if named:
            raise DataError(
                f"{where}: {label!r} is the name of the outputs {listed(map(str, named))}; give a "
                "number instead"
            )
    count = 1 + max(map(max, outputs.values()))
    are_numbers = any(isinstance(name, Fraction) for name in outputs)
    if number is not None and number in range(count) and not are_numbers:
        return int(number)
    given = [each for other in among if (each := _number(other)) is not None]
    whole = [int(each) for each in given if each.denominator == 1]
    why = shifted(whole, count) if len(whole) == len(among) else ""
    raise DataError(
        f"{where}: {label!r} is no class of the {count} that the model has; {why and f'{why}, or '}"
        "give their names in the order of its outputs with --classes."
        f"{'' if why else suggest(label, [name for name in outputs if isinstance(name, str)])}"
    )


def _number(label: str) -> Fraction | None:
    """The number that a spreadsheet shows as 7, 7.0, 7,0, +7 or 7.00E+00."""
    text = label.strip()
    return Fraction(text.replace(",", ".")) if NUMBER.fullmatch(text) else None


def _natural(name: str) -> list[int | str]:
    """The key of timm's order: without the case of letters, and numbers by their value."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name.lower())]


def _by_folder(
    root: Path, names: list[str], classes: list[str], *, named: bool, natural: bool
) -> tuple[dict[str, int], list[str], list[str]]:
    """Labels of pictures by their folders, the names of the outputs, and notes on their order."""
    inside = {name: name.split("/")[:-1] for name in names if "/" in name}
    if not inside:
        return dict.fromkeys(names, UNKNOWN), classes, []
    if loose := [name for name in names if name not in inside]:
        raise DataError(
            f"{root}: {loose[0]} lies beside folders; pictures are either all in folders of their "
            "class, or none is"
        )
    outer, inner = ({name: part[end] for name, part in inside.items()} for end in (0, -1))
    of, others = (inner, outer) if natural else (outer, inner)
    folders = sorted({*of.values()}, key=_natural if natural else None)
    numbered = named or all(folder.isdecimal() for folder in folders)
    if not numbered and len(folders) != len(classes):
        first = len(classes) == len(folders) + 1
        background = ", first that of a background class if it has one" if first else ""
        raise DataError(
            f"{root}: {len(folders)} folders for a model of {len(classes)} classes; give the "
            f"names in the order of its outputs with --classes{background}, or labels with --labels"
        )
    own = classes if numbered else folders
    outputs, notes = _outputs(own), list[str]()
    label = {one: _class(one, outputs, where=f"{root}/{one}", among=folders) for one in folders}
    if inner != outer:
        taken, other = "outermost", "timm takes the innermost"
        if natural:
            taken, other = "innermost", "torchvision takes the outermost"
        notes.append(
            f"classes: of folders in folders, the {taken} are the classes; {other}, "
            f"{listed(sorted({*others.values()}))}: give --labels where those are the classes"
        )
    if not named and sorted(folders) != sorted(folders, key=_natural):
        taken, other = ("timm", "torchvision") if natural else ("torchvision", "timm")
        if numbered:
            taken, other = "their numbers", "torchvision"
        notes.append(
            f"classes: the folders in the order of {taken}; in that of {other} other outputs "
            f"have the names {listed(folders)}: name them with --classes where that is theirs"
        )
    return {name: label[of[name]] for name in names}, own, notes
