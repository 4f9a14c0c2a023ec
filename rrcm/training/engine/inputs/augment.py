"""Augmentations declared as a list in ``params.yaml``, and Mixup and CutMix.

An entry is a name with its constants, e.g. ``- flip: {p: 0.5}``. Most augmentations work on
batches, on the training device (transforms.py). Others work on single pictures when they are
decoded, and come first in a list. ``resized_crop`` works on batches of arrays, and on single
picture files at full resolution. A list that does not begin with it starts from the picture as
cropped for evaluation.
"""

import math
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import rrcm.core.torchvision_stub  # noqa: F401 (timm imports torchvision)
from rrcm.config.sections import Mix
from rrcm.core.errors import ConfigError
from rrcm.core.ranges import require
from rrcm.core.registry import suggest
from rrcm.core.schema import parse, shown
from rrcm.data.splits import pictures
from rrcm.data.splits.pictures import Fit
from rrcm.training.engine.draws import Draws
from rrcm.training.engine.inputs import transforms

from timm.data import auto_augment  # isort: skip (after _torchvision)
from timm.data.mixup import Mixup, mixup_target  # isort: skip

SEEDS = 2**32  # number of seeds of numpy's generator
# timm would ignore unknown parts of a policy
POLICY = re.compile(r"rand(-(m|n|mmax|inc)[0-9]{1,2}|-(p|mstd)[0-9]{1,3}(\.[0-9]{1,6})?)*")
TRANSLATE = 0.45  # share of the shorter side, as in timm


@dataclass(frozen=True, kw_only=True, slots=True)
class RandAugment:
    """timm's RandAugment of one picture, with a ``policy`` such as rand-m9-mstd0.5-inc1.

    Grey pictures are converted to RGB for it, and back.
    Source: Cubuk et al. (2020), arXiv:1909.13719.
    """

    policy: str

    def __post_init__(self) -> None:
        require(
            POLICY.fullmatch(self.policy) is not None,
            f"policy: {shown(self.policy)} is not of the form rand-m9-n2-mstd0.5-inc1",
        )

    def __call__(
        self, picture: Image.Image, size: tuple[int, int], rng: random.Random
    ) -> Image.Image:
        """Augmented ``picture`` of the same size."""
        change = _rand_augment(self.policy, int(TRANSLATE * min(size)))
        with _global_seed(rng.randrange(SEEDS)):
            return change(picture.convert("RGB")).convert(picture.mode)


@dataclass(frozen=True, slots=True)
class PictureCrop:
    """`transforms.ResizedCrop` of a picture: whole pixels, antialiased bicubic scaling.

    Like torchvision's ``RandomResizedCrop``: if none of ten random rectangles fits, the largest
    central one of an allowed shape is taken.
    """

    cfg: transforms.ResizedCrop

    def __call__(
        self, picture: Image.Image, size: tuple[int, int], rng: random.Random
    ) -> Image.Image:
        """A random rectangle of ``picture`` at ``size``, (width, height)."""
        cut_out = picture.crop(self._box(*picture.size, rng))
        return cut_out.resize(size, Image.Resampling.BICUBIC)

    def _box(self, width: int, height: int, rng: random.Random) -> tuple[int, int, int, int]:
        low, high = self.cfg.ratio
        for _ in range(transforms.TRIES):
            area = width * height * rng.uniform(*self.cfg.scale)
            ratio = math.exp(rng.uniform(math.log(low), math.log(high)))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                left, top = rng.randint(0, width - w), rng.randint(0, height - h)
                return left, top, left + w, top + h
        w = min(width, max(1, round(height * high)))
        h = min(height, max(1, round(width / low)))
        left, top = (width - w) // 2, (height - h) // 2
        return left, top, left + w, top + h


KINDS = {
    "affine": transforms.Affine,
    "blur": transforms.Blur,
    "crop": transforms.Crop,
    "flip": transforms.Flip,
    "gain": transforms.Gain,
    "grey": transforms.Grey,
    "jitter": transforms.Jitter,
    "randaugment": RandAugment,
    "resized_crop": transforms.ResizedCrop,
    "solarize": transforms.Solarize,
}
Picture = PictureCrop | RandAugment


@dataclass(frozen=True, kw_only=True, slots=True)
class Augmentation:
    """The augmentations of one view: first those of single pictures, then those of batches."""

    to_pictures: tuple[Picture, ...]
    to_batches: tuple[Callable[[Tensor, Draws], Tensor], ...]

    def __call__(self, x: Tensor, draw: Draws) -> Tensor:
        """Augment a batch ``x`` [B, C, H, W] in [0, 1]; shape and range stay."""
        for transform in self.to_batches:
            x = transform(x, draw)
        return x

    def render(
        self, picture: Image.Image, fit: Fit, rng: random.Random, *, name: str
    ) -> np.ndarray:
        """Augment one picture and scale it to ``fit``, uint8 [C, H, W]."""
        if not self.to_pictures or isinstance(self.to_pictures[0], RandAugment):
            picture = pictures.fitted(picture, fit, name=name)
        _, height, width = fit.shape
        for transform in self.to_pictures:
            picture = transform(picture, (width, height), rng)
        return pictures.as_array(picture)


def build(declared: list[Any], *, where: str, encoded: bool = False) -> Augmentation:
    """Build the declared augmentations, for ``encoded`` pictures or for arrays.

    An empty list changes nothing.

    Raises:
        ConfigError: A name or a constant is unknown, or an augmentation of pictures comes after one
            of batches.
    """
    parsed = [_parse(entry, where=f"{where}[{i}]") for i, entry in enumerate(declared)]
    leading, kinds = 0, (RandAugment, transforms.ResizedCrop)
    if encoded or any(isinstance(transform, RandAugment) for transform in parsed):
        while leading < len(parsed) and isinstance(parsed[leading], kinds):
            leading += 1
    late = kinds if encoded else RandAugment
    for i, transform in enumerate(parsed[leading:], leading):
        if isinstance(transform, late):
            raise ConfigError(
                f"{where}[{i}]: {_name(transform)} works on single pictures; put it before "
                f"{_name(parsed[leading])}, which works on batches"
            )
    return Augmentation(
        to_pictures=tuple(
            PictureCrop(t) if isinstance(t, transforms.ResizedCrop) else t for t in parsed[:leading]
        ),
        to_batches=tuple(parsed[leading:]),
    )


class Mixer:
    """Mixup and CutMix of the images and labels of a batch, and label smoothing, through timm.

    The whole batch shares one random coefficient. Rows 2i and 2i + 1 are mixed with each other, so
    that the result does not depend on how devices share a batch.
    Sources: Zhang et al. (2018), arXiv:1710.09412; Yun et al. (2019), arXiv:1905.04899.
    """

    def __init__(self, mix: Mix, classes: int) -> None:
        """``classes`` is the number K of classes."""
        self._mix, self._classes = mix, classes
        self._mixup = Mixup(
            mixup_alpha=mix.mixup,
            cutmix_alpha=mix.cutmix,
            prob=mix.prob,
            switch_prob=mix.switch,
            label_smoothing=mix.smoothing,
            num_classes=classes,
        )

    def __call__(self, x: Tensor, y: Tensor, draw: Draws) -> tuple[Tensor, Tensor]:
        """Mix images ``x`` [B, C, H, W] and classes ``y``, int64 [B], to probabilities [B, K].

        Both are returned unchanged if mixing and smoothing are off.

        Raises:
            ConfigError: The number of rows is odd.
        """
        if not (self._mix.mixup or self._mix.cutmix):
            if not self._mix.smoothing:
                return x, y
            return x, mixup_target(y, self._classes, smoothing=self._mix.smoothing)
        if len(x) % 2:
            raise ConfigError(
                f"batch_size: mixing pairs images, and {len(x)} on a device is an odd number"
            )
        place = torch.arange(len(x), device=x.device)
        order = torch.cat([place[::2], place[1::2].flip(0)])  # timm mixes row i with row B - 1 - i
        with _global_seed(draw.integer(SEEDS)):
            mixed, probabilities = self._mixup(x[order], y[order])
        back = order.argsort()
        return mixed[back], probabilities[back]


def _parse(entry: Any, *, where: str) -> Any:
    if not (isinstance(entry, dict) and len(entry) == 1):
        raise ConfigError(f"{where}: expected one name with its constants, got {shown(entry)}")
    (name, constants), *_ = entry.items()
    if name not in KINDS:
        raise ConfigError(
            f"{where}: no augmentation {shown(name)}, only {', '.join(KINDS)}."
            f"{suggest(name, [*KINDS]) if isinstance(name, str) else ''}"
        )
    return parse(constants, KINDS[name], where=f"{where}.{name}")


def _name(transform: object) -> str:
    return next(name for name, kind in KINDS.items() if isinstance(transform, kind))


@cache
def _rand_augment(policy: str, translate: int) -> auto_augment.RandAugment:
    return auto_augment.rand_augment_transform(policy, {"translate_const": translate})


@contextmanager
def _global_seed(seed: int) -> Iterator[None]:
    """Seed the global generators that timm uses, Python's and numpy's; restore them afterwards."""
    before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
