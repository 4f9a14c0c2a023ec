"""Packs raw images into the shards of splits, in parallel and byte for byte reproducibly."""

import hashlib
import io
import json
import shutil
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
import webdataset

from rrcm.config.sections import Data
from rrcm.core import pool
from rrcm.core.ending import FULL
from rrcm.core.errors import ConfigError, DataError
from rrcm.core.files import atomic, read_bytes, sha256, write_json
from rrcm.data.ingest.listing import Listing, Place
from rrcm.data.splits.shards import KIND, ROWS, SPLITS, sealed

OVERHEAD = 2048  # approximate overhead of a tar per image, in bytes


class Task(NamedTuple):
    """A shard to write."""

    tar: Path
    note: Path
    idx: list[int]
    labels: list[int]
    images: np.ndarray | list[Place]


def split(
    labels: Sequence[int], *, test: int, validation: int, choice: int, seed: int
) -> dict[str, list[int]]:
    """Assign each position of ``labels`` to a split; all but the training split are class-balanced.

    Within a class, images are ranked by SHA-256 of "seed/position": this needs no random generator,
    so it is the same in every version of every library. The first images go to the test split, the
    next to validation, choice and training, so that a different ``choice`` moves no image of the
    splits before it.

    Raises:
        DataError: A class has too few images to leave at least one for training.
    """
    ranked = defaultdict(list)
    for i in _ranked(range(len(labels)), b"%d/%%d" % seed):
        ranked[labels[i]].append(i)
    chosen: dict[str, list[int]] = {name: [] for name in SPLITS}
    totals = {"test": test, "validation": validation, "choice": choice}
    for c, label in enumerate(sorted(ranked)):
        left = ranked[label]
        counts = {
            name: total // len(ranked) + (c < total % len(ranked)) for name, total in totals.items()
        }
        if sum(counts.values()) >= len(left):
            wanted = ", ".join(f"{count} {name}" for name, count in counts.items())
            raise DataError(
                f"class {label} has {len(left)} images: too few for {wanted} and at least 1 "
                "training images; lower data.test, data.validation or data.choice"
            )
        for name, count in counts.items():
            chosen[name] += left[:count]
            left = left[count:]
        chosen["train"] += left
    return {name: sorted(rows) for name, rows in chosen.items()}


def _ranked(positions: Sequence[int], form: bytes) -> list[int]:
    return sorted(positions, key=lambda i: hashlib.sha256(form % i).digest())


def choose(listing: Listing, cfg: Data) -> dict[str, np.ndarray]:
    """The positions in ``listing`` of each split, in the order of its shards.

    Pixel arrays keep the order of the raw data. Picture files of the training split are shuffled,
    by SHA-256 of "order/seed/position", because they are read shard by shard.

    Raises:
        ConfigError: ``data.test``, ``data.size``, ``data.channels`` or ``data.crop`` do not fit the
            dataset.
        DataError: See `split`.
    """
    own = bool(listing.held.any())
    if own != (cfg.test == 0):
        raise ConfigError(
            f"data.test: {cfg.name} has a test split of its own, so this must be 0; got {cfg.test}"
            if own
            else f"data.test: {cfg.name} has no test split of its own; hold some images out"
        )
    images = listing.images
    shape = images.shape[1:] if isinstance(images, np.ndarray) else None  # [C, H, W]
    if shape and (*shape, 1.0) != (cfg.channels, cfg.size, cfg.size, cfg.crop):
        raise ConfigError(
            f"data.channels, data.size, data.crop: images of {cfg.name} are {[*shape]}, and "
            f"stay so: set these to {shape[0]}, {shape[1]} and 1.0; got {cfg.channels}, {cfg.size} "
            f"and {cfg.crop:g}"
        )
    free, held = np.flatnonzero(~listing.held), np.flatnonzero(listing.held)
    labels = listing.labels[free].tolist()
    held_out = {"test": cfg.test, "validation": cfg.validation, "choice": cfg.choice}
    chosen = split(labels, **held_out, seed=cfg.seed)
    if not shape:
        chosen["train"] = _ranked(chosen["train"], b"order/%d/%%d" % cfg.seed)
    found = {name: free[rows] for name, rows in chosen.items()}
    return found | {"test": held} if own else found


def write(listing: Listing, out: Path, cfg: Data, *, scratch: Path, workers: int) -> Iterator[int]:
    """Write all splits of a dataset to the folder ``out``, completely or not at all.

    Guarantee: the same images and settings give the same bytes on any machine, at any time and with
    any number of ``workers``. Complete shards that a killed run left in ``scratch`` are not written
    again. Each worker holds at most one picture file in memory.

    Yields how many images are in shards so far.

    Args:
        listing: The images of the dataset.
        out: The folder; its previous contents are deleted.
        cfg: The splits, and the number of images per shard.
        scratch: A folder on the file system of ``out``, for this dataset and these settings only.
        workers: Number of processes.

    Raises:
        ConfigError: See `choose`.
        DataError: An image cannot be read or has changed, or the disk is full.
    """
    chosen, done, notes = choose(listing, cfg), 0, []
    for stale in scratch.rglob(".*.part"):
        stale.unlink()
    try:
        for note in pool.spread(_pack, _tasks(listing, chosen, cfg, scratch), workers=workers):
            notes.append(note)
            yield (done := done + len(note["images"]))
        digests = [digest for note in notes for digest in note["images"]]
        order = np.argsort(np.concatenate([*chosen.values()]))
        try:
            listing.check([digests[place] for place in order])
        except DataError:
            shutil.rmtree(scratch)  # a later run must not continue from these shards
            raise
        for name, rows in chosen.items():
            own = [note for note in notes if note["split"] == name]
            _index(scratch / "whole" / name, listing, rows, own, cfg)
    except OSError as error:
        if error.errno not in FULL:
            raise
        size = listing.size + OVERHEAD * len(listing.labels)
        raise DataError(
            f"{scratch}: {error.strerror}; the shards take about {size / 1e9:.3g} GB; make room "
            "and run the same command again, which goes on where this one stopped",
            retryable=True,
        ) from None
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    (scratch / "whole").replace(out)  # from here on notes lack their shards and are not trusted
    shutil.rmtree(scratch)


def _tasks(
    listing: Listing, chosen: dict[str, np.ndarray], cfg: Data, scratch: Path
) -> Iterator[Task]:
    images = listing.images
    for name, rows in chosen.items():
        for number, first in enumerate(range(0, len(rows), cfg.shard_size)):
            some = rows[first : first + cfg.shard_size]
            own = images[some] if isinstance(images, np.ndarray) else [images[i] for i in some]
            yield Task(
                tar=scratch / "whole" / name / f"{number:06d}.tar",
                note=scratch / "notes" / name / f"{number:06d}.json",
                idx=listing.idx[some].tolist(),
                labels=listing.labels[some].tolist(),
                images=own,
            )


def _pack(task: Task) -> dict[str, Any]:
    """Write a shard and a note with the places of its images, unless both exist unchanged."""
    if task.note.exists() and task.tar.exists():
        note = json.loads(task.note.read_text())
        if sha256(task.tar) == note["sha256"]:
            return note
    digests = []
    with atomic(task.tar) as part:
        with part.open("wb") as stream, webdataset.TarWriter(stream, encoder=False, mtime=0) as tar:
            for idx, label, image in zip(task.idx, task.labels, task.images, strict=True):
                suffix, raw = _encoded(image)
                digests.append(hashlib.sha256(raw).hexdigest())
                tar.write({"__key__": f"{idx:08d}", "cls": str(label).encode(), suffix: raw})
        with tarfile.open(part, "r:") as tar:
            images = [member for member in tar if not member.name.endswith(".cls")]
        note = {
            "split": task.tar.parent.name,
            "sha256": sha256(part),
            "offset": [member.offset_data for member in images],
            "size": [member.size for member in images],
            "images": digests,
        }
    write_json(task.note, note)
    return note


def _encoded(image: np.ndarray | Place) -> tuple[str, bytes]:
    if isinstance(image, Place):
        return PurePath(image.name).suffix[1:].lower(), read_bytes(Path(image.path))
    file = io.BytesIO()
    np.save(file, image, allow_pickle=False)
    return "npy", file.getvalue()


def _index(
    folder: Path, listing: Listing, rows: np.ndarray, notes: list[dict[str, Any]], cfg: Data
) -> None:
    """Write the table and the index that make a folder of tars a split."""
    table = np.empty(len(rows), dtype=KIND)
    table["idx"], table["label"] = listing.idx[rows], listing.labels[rows]
    table["shard"] = np.arange(len(rows)) // cfg.shard_size
    for key in ("offset", "size"):
        table[key] = [value for note in notes for value in note[key]]
    with atomic(folder / ROWS) as part, part.open("wb") as file:
        np.save(file, table, allow_pickle=False)
    images = listing.images
    own = bool(listing.held.any()) and folder.name == "test"
    index = {
        "classes": list(listing.classes),
        "shape": list(images.shape[1:]) if isinstance(images, np.ndarray) else None,
        "white": listing.max_value,
        "size": cfg.size,
        "channels": cfg.channels,
        "crop": cfg.crop,
        "rule": {"name": "the dataset's own" if own else "class-balanced", "seed": cfg.seed},
        "images": len(rows),
        "sha256": {
            ROWS: sha256(folder / ROWS),
            **{f"{number:06d}.tar": note["sha256"] for number, note in enumerate(notes)},
        },
    }
    write_json(folder / "index.json", sealed(index))
