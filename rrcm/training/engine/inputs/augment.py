"""Augmentations as ``params.yaml`` declares them, and Mixup and CutMix.

An entry of a list is a name with its constants, e.g. ``- flip: {p: 0.5}``. Most augmentations work
on batches, on the training device. Others work on single pictures when they are decoded, and come
first in a list. ``resized_crop`` works on batches of arrays, and on single picture files at full
resolution. A list that does not begin with it starts from the picture as cropped for evaluation.
"""

from typing import Any

import torch
from timm.data.mixup import Mixup, mixup_target
from torch import Tensor

from rrcm.config.sections import Mix
from rrcm.core.errors import ConfigError
from rrcm.core.registry import suggest
from rrcm.core.schema import parse, shown
from rrcm.training.engine.draws import Draws
from rrcm.training.engine.inputs import transforms
from rrcm.training.engine.inputs.transforms import Augmentation, RandAugment

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


def build(declared: list[Any], *, where: str, encoded: bool = False) -> Augmentation:
    """Build the declared augmentations, for ``encoded`` pictures or for arrays.

    An empty list changes nothing.

    Raises:
        ConfigError: A name or a constant is unknown, or an augmentation of pictures comes after one
            of batches.
    """
    parsed = [_parse(entry, where=f"{where}[{i}]") for i, entry in enumerate(declared)]
    names = [name for entry in declared for name in entry]
    leading, kinds = 0, (RandAugment, transforms.ResizedCrop)
    if encoded or any(isinstance(transform, RandAugment) for transform in parsed):
        while leading < len(parsed) and isinstance(parsed[leading], kinds):
            leading += 1
    late = kinds if encoded else RandAugment
    for i, transform in enumerate(parsed[leading:], leading):
        if isinstance(transform, late):
            raise ConfigError(
                f"{where}[{i}]: {names[i]} works on single pictures; put it before "
                f"{names[leading]}, which works on batches"
            )
    return Augmentation(to_pictures=tuple(parsed[:leading]), to_batches=tuple(parsed[leading:]))


class Mixer:
    """Mixup and CutMix of the images and labels of a batch, and label smoothing, through timm.

    The whole batch shares one random coefficient. Rows 2i and 2i + 1 are mixed with each other, so
    that the result does not depend on how devices share a batch.
    Sources: Zhang et al. (2018), arXiv:1710.09412; Yun et al. (2019), arXiv:1905.04899.
    """

    def __init__(self, mix: Mix, classes: int) -> None:
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
        with transforms.global_seed(draw.integer(transforms.SEEDS)):
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
