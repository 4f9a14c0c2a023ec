"""A dataset of picture files in a few kilobytes, so that DVC can keep it without a second copy.

The files stay where they are. The manifest holds, for each class of each part, how many pictures
there are and one SHA-256 of all their names and bytes: equal manifests are equal datasets, however
they are packed and wherever they lie. Where they lie on this machine is in a file beside, the link.
"""

import dataclasses
import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rrcm.core import pool
from rrcm.core.errors import ConfigError, DataError
from rrcm.core.files import read_bytes, read_json, write_json
from rrcm.core.schema import parse
from rrcm.data.ingest.listing import Listing, Place
from rrcm.data.splits import pictures
from rrcm.data.splits.pictures import Fit

Tree = dict[str, dict[str, list[Place]]]  # part (train, test) -> class -> pictures, by name
FILE = "manifest.json"
CHUNK = 64  # pictures that a process examines at a time
THUMB = Fit(shape=(3, 8, 8), resize="squash")  # all of a picture is decoded for a small one


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The pictures of a class, in one part; ``sha256`` is of ``<sha256> <name>`` lines, by name."""

    images: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """A dataset; ``skipped`` are files, as ``part/class/name``, that are no part of it."""

    parts: dict[str, dict[str, Group]]
    skipped: list[str]


class Seen(NamedTuple):
    """What reading a picture showed; ``error`` says why it cannot be used, if it cannot."""

    sha256: str
    size: int
    error: str


def examine(tree: Tree, path: Path, *, skip_unreadable: bool, workers: int) -> Iterator[int]:
    """Read and decode every picture once, and write their manifest to ``path``, at the end.

    Yields how many pictures have been read.

    Raises:
        DataError: A picture cannot be read, and ``skip_unreadable`` is False; or none of a class
            can.
    """
    done, skipped = 0, []
    parts: dict[str, dict[str, Group]] = {}
    found = pool.spread(_look, _chunks(tree), workers=workers)
    for part, classes in tree.items():
        for name, places in classes.items():
            seen: list[Seen] = []
            while len(seen) < len(places):
                seen += (more := next(found))
                yield (done := done + len(more))
            broken = [(p, s.error) for p, s in zip(places, seen, strict=True) if s.error]
            if broken and not skip_unreadable:
                raise DataError(f"{broken[0][1]}; --skip-unreadable leaves such files out")
            if len(broken) == len(places):
                raise DataError(f"{part}/{name}: none of {len(places)} pictures can be read")
            skipped += [f"{part}/{name}/{place.name}" for place, _ in broken]
            good = [(p, s) for p, s in zip(places, seen, strict=True) if not s.error]
            parts.setdefault(part, {})[name] = Group(
                images=len(good),
                bytes=sum(s.size for _, s in good),
                sha256=digest((p.name, s.sha256) for p, s in good),
            )
    write_json(path, dataclasses.asdict(Manifest(parts=parts, skipped=skipped)))


def _chunks(tree: Tree) -> Iterator[list[Place]]:
    for classes in tree.values():
        for places in classes.values():
            yield from (places[i : i + CHUNK] for i in range(0, len(places), CHUNK))


def _look(places: list[Place]) -> list[Seen]:
    seen = []
    for place in places:
        try:
            raw = place.read()
            pictures.read(io.BytesIO(raw), THUMB, name=str(place))
            seen.append(Seen(hashlib.sha256(raw).hexdigest(), len(raw), ""))
        except DataError as error:
            seen.append(Seen("", 0, str(error)))
    return seen


def digest(files: Iterable[tuple[str, str]]) -> str:
    """One SHA-256 for files given as (name, SHA-256), whatever their order."""
    lines = (f"{sha256} {name}\n" for name, sha256 in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read(path: Path, *, command: str) -> Manifest:
    """The manifest at ``path``; ``command`` is what writes it.

    Raises:
        DataError: It is missing or damaged.
    """
    try:
        return parse(read_json(path, hint=f"; `{command}` writes it"), Manifest, where=str(path))
    except ConfigError as error:
        raise DataError(f"{path}: damaged ({error}); `{command}` rewrites it") from None


def listing(root: Path, link: Path, tree: Callable[[Path], Tree]) -> Listing:
    """The pictures that ``root/manifest.json`` describes, where ``link`` says that they are.

    ``idx`` counts the pictures of a part by class and name; skipped ones keep their number.

    Args:
        root: The folder of the manifest.
        link: A file that holds a path.
        tree: What is at a path.

    Raises:
        DataError: The files are not on this machine, or others than the manifest says.
    """
    command = f"rrcm data {root.name} --from DIR"
    manifest = read(root / FILE, command=command)
    if not link.exists():
        raise DataError(
            f"{root.name}: where its files are on this machine is not known; `{command}` notes it"
        )
    source = Path(os.fsdecode(read_bytes(link)).strip())
    if not source.is_dir():
        raise DataError(f"{source}: not found, where {root.name} was; `{command}` if it moved")
    skipped, there = {*manifest.skipped}, tree(source)
    kept: Tree = {}
    for part, name in _groups(there, manifest.parts):
        places = there.get(part, {}).get(name, [])
        good = [place for place in places if f"{part}/{name}/{place.name}" not in skipped]
        expected = manifest.parts.get(part, {}).get(name)
        if len(good) != (expected.images if expected else 0):
            raise DataError(
                f"{source}: class folder {part}/{name} has {len(good)} pictures, the manifest "
                f"{expected.images if expected else 0}; restore it, or `{command}` for new data"
            )
        kept.setdefault(part, {})[name] = good
    return _listed(there, kept, manifest, source, command)


def _groups(*trees: Tree | dict[str, dict[str, Group]]) -> list[tuple[str, str]]:
    """Every (part, class) of any, train first."""
    found = {(part, name) for tree in trees for part in tree for name in tree[part]}
    return sorted(found, key=lambda pair: (pair[0] != "train", pair))


def _listed(there: Tree, kept: Tree, manifest: Manifest, source: Path, command: str) -> Listing:
    classes = sorted(kept["train"])
    idx, labels, held, images = [], [], [], []
    for part, groups in kept.items():
        first = 0
        for name, places in groups.items():
            good = {*places}
            idx += [i for i, place in enumerate(there[part][name], first) if place in good]
            first += len(there[part][name])
            labels += [classes.index(name)] * len(places)
            held += [part == "test"] * len(places)
            images += places

    def check(digests: list[str]) -> None:
        place = 0
        for part, groups in kept.items():
            for name, places in groups.items():
                read_ = digests[place : (place := place + len(places))]
                got = digest(zip((p.name for p in places), read_, strict=True))
                if got != manifest.parts[part][name].sha256:
                    raise DataError(
                        f"{source}: pictures of class folder {part}/{name} are not those of the "
                        f"manifest; restore them, or `{command}` for new data"
                    )

    return Listing(
        classes=tuple(classes),
        max_value=pictures.MAX_VALUE,
        idx=np.array(idx, dtype=np.int64),
        labels=np.array(labels, dtype=np.int64),
        held=np.array(held, dtype=bool),
        images=images,
        size=sum(g.bytes for groups in manifest.parts.values() for g in groups.values()),
        check=check,
    )
