"""Augmented batches of a training split, step by step, on the training device.

Guarantee: a row of a batch is a function of the seed, the step, the weights of the rows if there
are any, and the row's place in the batch of all processes. It does not depend on the number of
workers, on how processes share the batch, or on the step at which training resumed.
"""

import io
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from rrcm.core.errors import ConfigError, DataError
from rrcm.data.splits import pictures
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
    rows: Tensor  # of the training split, int64 [b], on the CPU


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
    weights: Tensor | None = None,
) -> Iterator[Batch]:
    """The batches of steps ``start`` to ``stop`` - 1, in order.

    ``weights`` are those of `order.rows` at all of these steps.

    Arrays are copied to the device once and augmented there. Picture files are prepared by
    ``workers`` processes ahead of time, or by this process if that is 0, and copied to the device
    as bytes. Arguments are those of `loop.Training`.

    Raises:
        ConfigError: ``augment`` is invalid or not for arrays, or ``batch_size`` cannot be shared
            evenly.
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
        weights=weights,
    )
    steps = range(start, stop)
    if encoded:
        images = _rendered(part, steps, device, workers)
    else:
        for name, view in part.views.items():
            if view.to_pictures:
                raise ConfigError(
                    f"{places[name]}: randaugment works on picture files, and these data are "
                    "arrays; leave it out"
                )
        held = torch.from_numpy(split.images).to(device)
        images = (dict.fromkeys(augment, held[part.chosen(n).to(device)]) for n in steps)
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
    weights: Tensor | None

    def chosen(self, step: int) -> Tensor:
        """Rows of the split, int64 [b]."""
        size, seed, weights = self.batch_size, self.seed, self.weights
        rows = order.rows(step, shards=self.shards, batch_size=size, seed=seed, weights=weights)
        return rows[self.first : self.first + self.rows]

    def __getitem__(self, step: int) -> dict[str, Tensor] | DataError:
        """Every view of pictures after the augmentations of pictures, uint8 [b, C, H, W].

        A DataError is returned and not raised: from a worker process it would arrive as a
        traceback.
        """
        images = self.split.images
        assert isinstance(images, Pictures)
        fit = images.fit
        views = {name: np.empty((self.rows, *fit.shape), dtype=np.uint8) for name in self.views}
        try:
            for place, row in enumerate(self.chosen(step).tolist()):
                name = images.name(row)
                picture = pictures.decode(io.BytesIO(images.encoded(row)), fit.shape[0], name=name)
                for view, augmentation in self.views.items():
                    rng = random.Random(f"{self.seed}/{step}/{self.first + place}/{view}")
                    views[view][place] = augmentation.render(picture, fit, rng, name=name)
        except DataError as error:
            return error
        return {name: torch.from_numpy(rendered) for name, rendered in views.items()}


def _shards(split: Split) -> tuple[int, ...]:
    """Number of images in each shard; arrays are one shard."""
    if isinstance(split.images, Pictures):
        return tuple(np.bincount(split.images.rows["shard"]).tolist())
    return (len(split.labels),)


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
        rows, augmented = part.chosen(step), {}
        for name, pixels in views.items():
            draw = Draws(part.seed, step, first=part.first, purpose=f"augment/{name}")
            augmented[name] = part.views[name](pixels.float() / part.split.max_value, draw)
        yield Batch(step=step, views=augmented, labels=labels[rows].to(device), rows=rows)
