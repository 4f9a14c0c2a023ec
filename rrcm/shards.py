"""WebDataset shards: bit-identical on every rebuild, verified on every read.

A shard is a tar of ``<idx>.npy`` (uint8 [C, H, W]) and ``<idx>.cls``. ``index.json`` beside the
shards holds the classes, the shape, the white level, the images of each split and the rule that
chose them, and each shard's SHA-256.
"""

import hashlib
import io
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import webdataset
from webdataset.tariterators import group_by_keys, tar_file_expander

from rrcm.errors import DataError
from rrcm.files import sha256, write_json

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One labelled image; ``idx`` is its place in the raw data, its name for ever."""

    idx: int
    image: np.ndarray  # uint8 [C, H, W]
    label: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """The images of one split, decoded; N in the order of the shards."""

    idx: np.ndarray  # int64 [N]
    images: np.ndarray  # uint8 [N, C, H, W]
    labels: np.ndarray  # int64 [N]
    classes: tuple[str, ...]
    white: int  # the pixel value that becomes 1.0

    def pixels(self, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Float32 pixels in [0, 1] of some rows, [n, C, H, W]."""
        return self.images[rows].astype(np.float32) / np.float32(self.white)


def split(labels: Sequence[int], *, test: int, validation: int, seed: int) -> dict[str, list[int]]:
    """Assign each position of ``labels`` to a split; test and validation are class-balanced.

    Within a class, images are ranked by SHA-256 of "seed/position": the rule needs no random
    generator, so it is the same in every version of every library.

    Raises:
        DataError: A class has fewer images than test and validation take.
    """
    ranked = defaultdict(list)
    for i in sorted(
        range(len(labels)), key=lambda i: hashlib.sha256(b"%d/%d" % (seed, i)).digest()
    ):
        ranked[labels[i]].append(i)
    chosen: dict[str, list[int]] = {name: [] for name in SPLITS}
    for c, label in enumerate(sorted(ranked)):
        n_test, n_validation = (
            total // len(ranked) + (c < total % len(ranked)) for total in (test, validation)
        )
        if n_test + n_validation >= len(ranked[label]):
            raise DataError(
                f"class {label} has {len(ranked[label])} images: too few for {n_test} test and "
                f"{n_validation} validation images; lower data.test or data.validation"
            )
        chosen["test"] += ranked[label][:n_test]
        chosen["validation"] += ranked[label][n_test : n_test + n_validation]
        chosen["train"] += ranked[label][n_test + n_validation :]
    return {name: sorted(rows) for name, rows in chosen.items()}


def write(
    examples: Iterable[Example],
    out: Path,
    *,
    classes: tuple[str, ...],
    white: int,
    test: int,
    validation: int,
    seed: int,
    shard_size: int,
) -> dict[str, Any]:
    """Write all splits and ``index.json`` to the folder ``out``; whole, or not at all.

    Guarantee: the same examples and arguments give the same bytes, wherever and whenever.
    """
    examples = list(examples)
    rows = split([e.label for e in examples], test=test, validation=validation, seed=seed)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        index: dict[str, Any] = {
            "classes": list(classes),
            "shape": list(examples[0].image.shape),
            "white": white,
            "rule": {"name": "class-balanced", "seed": seed},
            "splits": {},
        }
        for name, chosen in rows.items():
            with webdataset.ShardWriter(
                f"{part}/{name}-%06d.tar", maxcount=shard_size, mtime=0, verbose=0
            ) as writer:
                for i in chosen:
                    writer.write(_member(examples[i]))
            index["splits"][name] = {
                "idx": [examples[i].idx for i in chosen],
                "sha256": {tar.name: sha256(tar) for tar in sorted(part.glob(f"{name}-*.tar"))},
            }
        write_json(part / "index.json", index)
        shutil.rmtree(out, ignore_errors=True)
        part.replace(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return index


def _member(example: Example) -> dict[str, Any]:
    array = io.BytesIO()
    np.save(array, example.image, allow_pickle=False)
    return {
        "__key__": f"{example.idx:08d}",
        "cls": str(example.label).encode(),
        "npy": array.getvalue(),
    }


def read_index(root: Path) -> dict[str, Any]:
    """The contents of ``root/index.json``."""
    path = root / "index.json"
    try:
        index = json.loads(path.read_text())
        index["splits"], index["classes"], index["white"]
        return index
    except FileNotFoundError:
        raise DataError(f"{path}: not found; `dvc repro shard` writes it") from None
    except (ValueError, KeyError, TypeError) as error:  # no JSON, or not ours
        raise DataError(f"{path}: damaged ({error}); `dvc repro -f shard` rewrites it") from None


def read(root: Path, name: str) -> Split:
    """Decode the split ``name`` of the shards in ``root``, every shard checked first.

    Raises:
        DataError: A shard is missing, truncated or altered, or images are not those of the index.
    """
    index = read_index(root)
    listed = index["splits"][name]
    idx, images, labels = [], [], []
    for file, expected in listed["sha256"].items():
        path = root / file
        if not path.exists():
            raise DataError(f"{path}: listed in index.json, but missing; `dvc repro -f shard`")
        if (got := sha256(path)) != expected:
            raise DataError(
                f"{path}: SHA-256 is {got[:12]}…, index.json says {expected[:12]}…: the shard is "
                "truncated or altered; `dvc checkout shards` or `dvc repro -f shard` restores it"
            )
        with path.open("rb") as stream:  # WebDataset(path) would leave it open
            files = tar_file_expander([{"url": str(path), "stream": stream}])
            for sample in group_by_keys(files):
                idx.append(int(sample["__key__"]))
                images.append(np.load(io.BytesIO(sample["npy"]), allow_pickle=False))
                labels.append(int(sample["cls"]))
    if idx != listed["idx"]:
        raise DataError(f"{root}: the images of split {name!r} are not those of index.json")
    return Split(
        idx=np.array(idx),
        images=np.stack(images),
        labels=np.array(labels),
        classes=tuple(index["classes"]),
        white=index["white"],
    )
