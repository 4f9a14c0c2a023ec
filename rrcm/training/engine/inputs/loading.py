"""Augmented batches of a training split, step by step, on the training device.

Guarantee: a row of a batch is a function of the seed, the step and the row's place in the batch of
all processes. It does not depend on the number of workers, on how processes share the batch, or on
the step at which training resumed.
"""

import io
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from rrcm.core.errors import DataError
from rrcm.data.splits import pictures
from rrcm.data.splits.pictures import MAX_VALUE, Fit
from rrcm.data.splits.shards import Pictures, Split
from rrcm.training.engine import distributed
from rrcm.training.engine.draws import Draws
from rrcm.training.engine.inputs import order
from rrcm.training.engine.inputs.augment import build
from rrcm.training.engine.inputs.transforms import Augmentation

AHEAD = 2  # batches that each worker prepares in advance


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """This process's images of one step.

    Mixing (`augment.Mixer`) replaces classes by probabilities, [b, K].
    """

    step: int
    views: dict[str, Tensor]  # float32 in [0, 1], [b, C, H, W] each
    labels: Tensor  # int64 [b]


def batches(
    split: Split,
    augment: dict[str, list[Any]],
    *,
    batch_size: int,
    seed: int,
    start: int,
    stop: int,
    device: torch.device | str,
    workers: int,
    where: str,
) -> Iterator[Batch]:
    """The batches of steps ``start`` to ``stop`` - 1, in order.

    Arrays are copied to the device once and augmented there. Picture files, and arrays with an
    augmentation of pictures, are prepared by ``workers`` processes ahead of time, or by this
    process if that is 0, and copied to the device as bytes.

    Args:
        split: The images.
        augment: For each view its list of augmentations.
        batch_size: Images of a step over all processes; each gets an equal part.
        seed: Seed of the order and of all augmentations.
        start: The first step.
        stop: The step after the last one.
        device: Device of the batches.
        workers: Decoding processes, at most one for each core.
        where: The section of params.yaml, for error messages.

    Raises:
        ConfigError: ``augment`` is invalid, or ``batch_size`` cannot be shared evenly.
        DataError: A picture cannot be decoded.
    """
    rows, encoded = distributed.part(batch_size, where=where), isinstance(split.images, Pictures)
    declared_at = f"{where}: augment"
    places = {n: f"{declared_at}.{n}" if len(augment) > 1 else declared_at for n in augment}
    part = _Part(
        split=split,
        views={
            name: build(declared, where=places[name], encoded=encoded)
            for name, declared in augment.items()
        },
        shards=_shards(split),
        batch_size=batch_size,
        rows=rows,
        first=distributed.rank() * rows,
        seed=seed,
    )
    order.steps_per_epoch(len(split.labels), batch_size=batch_size)  # checks the batch size
    steps = range(start, stop)
    if encoded or any(view.to_pictures for view in part.views.values()):
        images = _rendered(part, steps, device, workers)
    else:
        images = _in_memory(part, steps, device)
    return _augmented(part, steps, images, device)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part(Dataset[dict[str, Tensor] | DataError]):
    """This process's rows of each step: ``rows`` of them, from row ``first`` of the batch."""

    split: Split
    views: dict[str, Augmentation]
    shards: tuple[int, ...]
    batch_size: int
    rows: int
    first: int
    seed: int

    def chosen(self, step: int) -> Tensor:
        """Rows of the split, int64 [b]."""
        rows = order.rows(step, shards=self.shards, batch_size=self.batch_size, seed=self.seed)
        return rows[self.first : self.first + self.rows]

    def max_value(self, view: str) -> int:
        """The pixel value of a view that becomes 1.0."""
        return MAX_VALUE if self.views[view].to_pictures else self.split.max_value

    def __getitem__(self, step: int) -> dict[str, Tensor] | DataError:
        """Every view after the augmentations of pictures, uint8 [b, C, H, W].

        A DataError is returned and not raised: from a worker process it would arrive as a
        traceback.
        """
        shape = self.split.images.shape[1:]
        views = {name: np.empty((self.rows, *shape), dtype=np.uint8) for name in self.views}
        try:
            for place, row in enumerate(self.chosen(step).tolist()):
                self._render(row, f"{self.seed}/{step}/{self.first + place}", place, views)
        except DataError as error:
            return error
        return {name: torch.from_numpy(images) for name, images in views.items()}

    def _render(self, row: int, key: str, place: int, views: dict[str, np.ndarray]) -> None:
        """Write each view of one image to ``place`` of the view's batch."""
        images = self.split.images
        if isinstance(images, Pictures):
            fit, name = images.fit, images.name(row)
            picture = pictures.decode(io.BytesIO(images.encoded(row)), fit.shape[0], name=name)
        else:
            fit, name = Fit(shape=images.shape[1:]), f"image {self.split.idx[row]}"
            picture = _as_picture(images[row], max_value=self.split.max_value)
        for view, augmentation in self.views.items():
            if augmentation.to_pictures or isinstance(images, Pictures):
                rng = random.Random(f"{key}/{view}")
                views[view][place] = augmentation.render(picture, fit, rng, name=name)
            else:
                views[view][place] = images[row]


def _shards(split: Split) -> tuple[int, ...]:
    """Number of images in each shard; arrays are one shard."""
    if isinstance(split.images, Pictures):
        return tuple(np.bincount(split.images.rows["shard"]).tolist())
    return (len(split.labels),)


def _as_picture(image: np.ndarray, *, max_value: int) -> Image.Image:
    """An array [C, H, W] as a picture of eight bits."""
    image = ((image.astype(np.int64) * MAX_VALUE + max_value // 2) // max_value).astype(np.uint8)
    return Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))


def _in_memory(
    part: _Part, steps: range, device: torch.device | str
) -> Iterator[dict[str, Tensor]]:
    images = torch.from_numpy(part.split.images).to(device)
    for step in steps:
        yield dict.fromkeys(part.views, images[part.chosen(step).to(device)])


def _rendered(
    part: _Part, steps: range, device: torch.device | str, workers: int
) -> Iterator[dict[str, Tensor]]:
    workers = min(workers, os.cpu_count() or 1)  # more would only wait for one another
    loader = DataLoader(
        part,
        batch_size=None,  # a step is a batch already
        sampler=steps,
        num_workers=workers,  # torch starts each with one thread
        prefetch_factor=AHEAD if workers else None,
        pin_memory=torch.device(device).type == "cuda",
        generator=torch.Generator(),  # else it would draw from the global generator
    )
    for views in loader:
        if isinstance(views, DataError):
            raise views
        yield {name: images.to(device, non_blocking=True) for name, images in views.items()}


def _augmented(
    part: _Part, steps: range, images: Iterator[dict[str, Tensor]], device: torch.device | str
) -> Iterator[Batch]:
    labels = torch.from_numpy(part.split.labels)
    for step, views in zip(steps, images, strict=True):
        draws = {
            name: Draws(part.seed, step, first=part.first, purpose=f"augment/{name}")
            for name in part.views
        }
        yield Batch(
            step=step,
            views={
                name: part.views[name](pixels.float() / part.max_value(name), draws[name])
                for name, pixels in views.items()
            },
            labels=labels[part.chosen(step)].to(device),
        )
