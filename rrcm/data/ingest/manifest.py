"""Manifests describe datasets of picture files in a few kilobytes, so that DVC stores no copy.

The files stay where they are. The manifest holds, for each class of each part, the number of
pictures and one SHA-256 of all their names and bytes: equal manifests mean equal datasets, however
they are packed and wherever they lie. Their path on this machine is in a separate file, the link.
"""

import dataclasses
import hashlib
import io
import os
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rrcm.core import pool, progress
from rrcm.core.errors import ConfigError, DataError
from rrcm.core.files import read_bytes, read_json, write_json, write_text
from rrcm.core.schema import parse
from rrcm.data.ingest.listing import Listing, Origin, Place
from rrcm.data.splits import pictures
from rrcm.data.splits.pictures import Fit

Key = tuple[str, str]  # part, train or test, and class
Tree = dict[Key, list[Place]]  # pictures, by name
FILE = "manifest.json"
CHUNK = 64  # pictures that a process examines at a time
THUMB = Fit(shape=(3, 8, 8), resize="squash")  # decodes the whole picture, but keeps little


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The pictures of a class in one part; ``sha256`` hashes sorted ``<sha256> <name>`` lines."""

    images: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """A dataset; ``skipped`` are the files, as ``part/class/name``, that it leaves out."""

    parts: dict[str, dict[str, Group]]
    skipped: list[str]


class Seen(NamedTuple):
    """Result of reading a picture; ``error`` is why it cannot be used, or empty."""

    sha256: str
    size: int
    error: str


def acquire(root: Path, origin: Origin, tree: Tree) -> str:
    """Read and decode every picture of ``tree`` once, then write their manifest to ``root``.

    The folder of the pictures is written to ``origin.link``.

    Raises:
        DataError: A picture cannot be read and ``origin.skip_unreadable`` is False, or no picture
            of a class can be read.
    """
    path, images, skipped = root / FILE, sum(map(len, tree.values())), list[str]()
    parts: dict[str, dict[str, Group]] = {}
    chunks = (some[i : i + CHUNK] for some in tree.values() for i in range(0, len(some), CHUNK))
    with (
        closing(pool.spread(_look, chunks, workers=os.cpu_count() or 1)) as found,
        progress.bar(images, 0, root.name, " images") as shown,
    ):
        for (part, name), places in tree.items():
            seen: list[Seen] = []
            while len(seen) < len(places):
                seen += (more := next(found))
                shown.update(len(more))
            pairs = [*zip(places, seen, strict=True)]
            broken = [(place, one.error) for place, one in pairs if one.error]
            if broken and not origin.skip_unreadable:
                raise DataError(f"{broken[0][1]}; --skip-unreadable leaves such files out")
            if len(broken) == len(places):
                raise DataError(f"{part}/{name}: none of {len(places)} pictures can be read")
            skipped += [f"{part}/{name}/{place.name}" for place, _ in broken]
            good = [(place, one) for place, one in pairs if not one.error]
            parts.setdefault(part, {})[name] = Group(
                images=len(good),
                bytes=sum(one.size for _, one in good),
                sha256=digest((place.name, one.sha256) for place, one in good),
            )
    write_json(path, dataclasses.asdict(Manifest(parts=parts, skipped=skipped)))
    write_text(origin.link, f"{origin.folder().resolve()}\n")
    left_out = f" ({len(skipped):,} unreadable ones left out, listed there)" if skipped else ""
    return f"{path}: {images - len(skipped):,} images{left_out}"


def _look(places: list[Place]) -> list[Seen]:
    seen = []
    for place in places:
        try:
            raw = read_bytes(Path(place.path))
            pictures.read(io.BytesIO(raw), THUMB, name=place.path)
            seen.append(Seen(hashlib.sha256(raw).hexdigest(), len(raw), ""))
        except DataError as error:
            seen.append(Seen("", 0, str(error)))
    return seen


def digest(files: Iterable[tuple[str, str]]) -> str:
    """One SHA-256 for files given as (name, SHA-256), independent of their order."""
    lines = (f"{sha256} {name}\n" for name, sha256 in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def listing(root: Path, link: Path, tree: Callable[[Path], Tree]) -> Listing:
    """The pictures that ``root/manifest.json`` describes, at the path in the file ``link``.

    ``idx`` counts the pictures of a part by class and name; skipped ones keep their number.

    Args:
        root: The folder of the manifest.
        link: A file that contains the path of the pictures.
        tree: Lists the pictures at a path.

    Raises:
        DataError: The manifest is missing or damaged, or the files are not on this machine, or do
            not match it.
    """
    path, command = root / FILE, f"rrcm data {root.name} --from DIR"
    try:
        found = parse(read_json(path, hint=f"; `{command}` writes it"), Manifest, where=str(path))
    except ConfigError as error:
        raise DataError(f"{path}: damaged ({error}); `{command}` rewrites it") from None
    if not link.exists():
        raise DataError(
            f"{root.name}: where its files are on this machine is not known; `{command}` notes it"
        )
    source = Path(os.fsdecode(read_bytes(link)).strip())
    if not source.is_dir():
        raise DataError(f"{source}: not found, where {root.name} was; `{command}` if it moved")
    skipped, there = {*found.skipped}, tree(source)
    groups = {(p, name): group for p, own in found.parts.items() for name, group in own.items()}
    kept: Tree = {}
    for part, name in sorted(there.keys() | groups, key=lambda key: (key[0] != "train", key)):
        places = there.get((part, name), [])
        good = [place for place in places if f"{part}/{name}/{place.name}" not in skipped]
        images = groups[part, name].images if (part, name) in groups else 0
        if len(good) != images:
            raise DataError(
                f"{source}: class folder {part}/{name} has {len(good)} pictures, the manifest "
                f"{images}; restore it, or `{command}` for new data"
            )
        kept[part, name] = good
    return _listed(there, kept, groups, source, command)


def _listed(
    there: Tree, kept: Tree, groups: dict[Key, Group], source: Path, command: str
) -> Listing:
    classes = [name for part, name in kept if part == "train"]
    idx, labels, held, images, first = [], [], [], [], Counter[str]()
    for (part, name), places in kept.items():
        good = {*places}
        idx += [i for i, one in enumerate(there[part, name], first[part]) if one in good]
        first[part] += len(there[part, name])
        labels += [classes.index(name)] * len(places)
        held += [part == "test"] * len(places)
        images += places

    def check(digests: list[str]) -> None:
        rest = iter(digests)
        for key, places in kept.items():
            got = digest((place.name, next(rest)) for place in places)
            if got != groups[key].sha256:
                raise DataError(
                    f"{source}: pictures of class folder {'/'.join(key)} are not those of the "
                    f"manifest; restore them, or `{command}` for new data"
                )

    return Listing(
        classes=tuple(classes),
        max_value=pictures.MAX_VALUE,
        idx=np.array(idx, dtype=np.int64),
        labels=np.array(labels, dtype=np.int64),
        held=np.array(held, dtype=bool),
        images=images,
        size=sum(group.bytes for group in groups.values()),
        check=check,
    )
