"""Images per second from shards, from loose files, and of a training step.

``python -m benchmarks.loading --workers 0 --workers 2`` writes JPEGs of 500 x 375 pixels, into a
folder for each class and into shards. It then makes batches of both, turn by turn: from shards by
`rrcm.training.engine.inputs.loading`, from files by torchvision's ``ImageFolder`` under a
``DataLoader``, with the same crop, size and worker processes. Beside them is the
training rate of a network. Files were just written, so both read from memory; augmentation of
batches runs on the CPU, in the training process.
"""

import argparse
import io
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from torch.utils.data import DataLoader

import rrcm.core.torchvision_stub  # noqa: F401 (must precede torchvision)
from benchmarks.training import settings, shape
from rrcm.config.sections import Data
from rrcm.data.ingest import class_folders, sharding
from rrcm.data.ingest.listing import Listing
from rrcm.data.splits import shards
from rrcm.data.splits.shards import Split
from rrcm.training import pretrain
from rrcm.training.engine.inputs import loading

from torchvision import datasets, transforms  # isort: skip

CLASSES = 10
SIZE = 224
CROP = {"scale": [0.08, 1.0], "ratio": [0.75, 1.3333333333333333]}
COLOURS = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.2, "hue": 0.1, "p": 0.8}
FINETUNE = {"image": [{"resized_crop": CROP}, {"flip": {"p": 0.5}}]}
PRETRAIN = {
    "first": [
        {"resized_crop": CROP},
        {"jitter": COLOURS},
        {"grey": {"p": 0.2}},
        {"blur": {"sigma": [0.1, 2.0], "p": 1.0}},
        {"flip": {"p": 0.5}},
    ],
    "second": [
        {"resized_crop": CROP},
        {"jitter": COLOURS},
        {"grey": {"p": 0.2}},
        {"blur": {"sigma": [0.1, 2.0], "p": 0.1}},
        {"solarize": {"threshold": 0.5, "p": 0.2}},
        {"flip": {"p": 0.5}},
    ],
    "plain": [{"flip": {"p": 0.5}}],
}


def write(root: Path, count: int) -> Split:
    """Loose JPEGs below ``root``/loose, and the training split of their shards."""
    rng = np.random.default_rng(0)
    for i in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (47, 63, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), dtype=np.int64)
        grain = rng.integers(-24, 25, smooth.shape)
        file = io.BytesIO()
        Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)).save(file, "JPEG")
        path = root / "loose" / f"class{i % CLASSES}" / f"{i:06d}.jpeg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.getvalue())
    groups = class_folders.classes(root / "loose")
    places = [place for group in groups.values() for place in group]
    labels = np.repeat(np.arange(CLASSES), [len(group) for group in groups.values()])
    listing = Listing(
        classes=tuple(groups),
        max_value=255,
        idx=np.arange(count),
        labels=labels,
        held=np.zeros(count, dtype=bool),
        images=places,
        size=sum(Path(place.file).stat().st_size for place in places),
    )
    cfg = Data(
        name="jpegs",
        seed=0,
        test=CLASSES,
        validation=CLASSES,
        choice=0,
        shard_size=100,
        size=SIZE,
        channels=3,
        crop=0.875,
    )
    for _ in sharding.write(listing, root / "shards", cfg, scratch=root / "scratch", workers=1):
        pass
    print(f"{count} JPEGs, {listing.size / count / 1e3:.0f} kB each\n")
    return shards.read(root / "shards", "train")


def from_shards(split: Split, views: dict[str, list], batch: int, workers: int) -> Iterator[object]:
    """Yield endless batches from shards."""
    setting = {"batch_size": batch, "seed": 0, "start": 0, "stop": 10**9}
    return loading.batches(
        split, views, **setting, device="cpu", workers=workers, where="benchmark"
    )


def from_files(folder: Path, batch: int, workers: int) -> Iterator[object]:
    """Yield endless batches from loose files, as most training scripts do."""
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(
                SIZE, CROP["scale"], CROP["ratio"], transforms.InterpolationMode.BICUBIC
            ),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
        ]
    )
    dataset = datasets.ImageFolder(str(folder), transform)
    loader = DataLoader(
        dataset,
        batch_size=batch,
        shuffle=True,
        num_workers=workers,
        drop_last=True,
        persistent_workers=workers > 0,
    )
    return itertools.chain.from_iterable(itertools.repeat(loader))


def training(size: str, split: Split, batch: int) -> Iterator[object]:
    """Run endless pre-training steps on these pictures."""
    cfg = settings(batch, 10**6, precision="fp32", compiled=False)
    state = pretrain.start(cfg, shape(size, SIZE))
    images = split.images[np.arange(2 * batch)]
    few = Split(
        idx=split.idx[: 2 * batch],
        images=images,
        labels=split.labels[: 2 * batch],
        classes=split.classes,
        max_value=split.max_value,
    )
    return pretrain.pretrain(state, few, cfg)


def rate(batches: Iterator[object], batch: int, seconds: float) -> float:
    """Images per second, after one batch for warm-up."""
    next(batches)
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        next(batches)
        done += batch
    return done / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, action="append")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--size", default="s", help="the network that trains")
    parser.add_argument("--training-batch", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        split, batch = write(Path(folder), arguments.images), arguments.batch
        print("| | workers | images/s | lowest | highest |\n| --- |" + " ---: |" * 4)
        for workers in arguments.workers or [0, 2]:
            made = {
                "shards, fine-tuning": lambda w=workers: from_shards(split, FINETUNE, batch, w),
                "loose files": lambda w=workers: from_files(Path(folder) / "loose", batch, w),
                "shards, pre-training": lambda w=workers: from_shards(split, PRETRAIN, batch, w),
            }
            found: dict[str, list[float]] = {name: [] for name in made}
            for _ in range(arguments.repeats):
                for name, make in made.items():
                    found[name].append(rate(make(), batch, arguments.seconds))
            for name, rates in found.items():
                row(name, str(workers), rates)
        steps = training(arguments.size, split, arguments.training_batch)
        rates = [rate(steps, arguments.training_batch, 1.0) for _ in range(arguments.repeats)]
        row(f"pre-training step, {arguments.size}", "", rates)


def row(name: str, workers: str, rates: list[float]) -> None:
    """Print a line of the table."""
    numbers = " | ".join(f"{x:.1f}" for x in (statistics.median(rates), min(rates), max(rates)))
    print(f"| {name} | {workers} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
