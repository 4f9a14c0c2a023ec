"""Augmentations: of whole batches, on their device, and of single pictures when decoded.

Each is a dataclass of its constants. Those of batches map pixels in [0, 1], [B, C, H, W], to pixels
of the same shape and range; every image has random numbers of its own, which depend on its place in
the batch.
"""

import math
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from timm.data import RandomResizedCropAndInterpolation, auto_augment
from torch import Tensor

from rrcm.core.ranges import SIDE, not_negative, require, share
from rrcm.core.schema import shown
from rrcm.data.splits import pictures
from rrcm.data.splits.pictures import Fit
from rrcm.training.engine.draws import Draws

LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue, ITU-R BT.601
TRIES = 10  # random rectangles that a crop tries before it takes the whole image
ORDERS = 24  # permutations of the four changes of `Jitter`
SEEDS = 2**32  # number of seeds of numpy's generator
# timm would ignore unknown parts of a policy
POLICY = re.compile(r"rand(-(m|n|mmax|inc)[0-9]{1,2}|-(p|mstd)[0-9]{1,3}(\.[0-9]{1,6})?)*")
TRANSLATE = 0.45  # share of the shorter side, as in timm


def check_range(name: str, bounds: list[float]) -> None:
    """Refuse anything but two numbers [lo, hi], 0 < lo <= hi."""
    require(
        len(bounds) == 2 and 0 < bounds[0] <= bounds[1] <= SIDE,
        f"{name}: expected [lo, hi] with 0 < lo <= hi <= {SIDE}, got {shown(bounds)}",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Affine:
    """Rotate, shift, scale and shear by uniform random amounts, each within plus or minus its own.

    ``rotate`` is in degrees, ``translate`` a share of the image; ``scale`` is added to a factor of
    1, ``shear`` to 0. Pixels from outside the image are black.
    """

    rotate: float
    translate: float
    scale: float
    shear: float

    def __post_init__(self) -> None:
        not_negative(self, "rotate", most=360)
        not_negative(self, "translate", "scale", "shear", most=1)

    def __call__(self, x: Tensor, draw: Draws) -> Tensor:
        """Transform ``x``."""
        amounts = (math.radians(self.rotate), self.scale, self.shear)
        angle, scale, shear = (_around(x, draw, amount) for amount in amounts)
        right, down = (_around(x, draw, 2 * self.translate) for _ in range(2))
        cos, sin = (1 + scale) * angle.cos(), (1 + scale) * angle.sin()
        return _sample(x, [[cos, shear - sin, right], [sin, cos, down]], outside="zeros")


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """Multiply brightness by a uniform random factor, 1 plus or minus up to ``amount``."""

    amount: float

    def __post_init__(self) -> None:
        not_negative(self, "amount", most=1)

    def __call__(self, x: Tensor, draw: Draws) -> Tensor:
        """Transform ``x``."""
        return (x * _each(1 + _around(x, draw, self.amount))).clamp(0, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Flip:
    """Mirror left and right, with probability ``p``."""

    p: float

    def __post_init__(self) -> None:
        share(self, "p")

    def __call__(self, x: Tensor, draw: Draws) -> Tensor:
        """Transform ``x``."""
        return _sometimes(self.p, x, x.flip(-1), draw)


@dataclass(frozen=True, kw_only=True, slots=True)
class Crop:
    """Pad with black and crop at random: a shift by up to ``pad`` whole pixels each way."""

    pad: int

    def __post_init__(self) -> None:
        not_negative(self, "pad", most=SIDE)

    def __call__(self, x: Tensor, draw: Draws) -> Tensor:
        """Transform ``x``."""
        batch, channels, height, width = x.shape
        top, left = (draw.uniform(x, 2) * (2 * self.pad + 1)).long().unbind(1)  # [B] each
        padded = F.pad(x, [self.pad] * 4)
        image = torch.arange(batch, device=x.device).view(-1, 1, 1, 1)
        channel = torch.arange(channels, device=x.device).view(1, -1, 1, 1)
        row = _each(top) + torch.arange(height, device=x.device).view(1, 1, -1, 1)
        column = _each(left) + torch.arange(width, device=x.device)
        return padded[image, channel, row, column]


@dataclass(frozen=True, kw_only=True, slots=True)
class ResizedCrop:
    """Cut out a rectangle and stretch it to the size of the image, by bilinear interpolation.

    Its area, as a share of the image's, is uniform in ``scale``; its ratio of width to height is
    log-uniform in ``ratio``; its place is uniform. Rectangles that do not fit are drawn again;
    after ten of them the whole image is taken. Sides need not be whole numbers of pixels. Images
    are never shrunk, so no antialiasing is needed.
    """

    scale: list[float]
    ratio: list[float]

    def __post_init__(self) -> None:
        check_range("scale", self.scale)
        check_range("ratio", self.ratio)
        require(self.scale[1] <= 1, f"scale: at most the whole image, 1, got {shown(self.scale)}")

    def __call__(self, x: Tensor, draw: Draws) -> Tensor:
        """Transform ``x``."""
        across = x.shape[-2] / x.shape[-1]  # width share / height share of a square
        u, v, right, down = draw.uniform(x, 4, TRIES).unbind(1)  # [B, TRIES] each
        area = self.scale[0] + u * (self.scale[1] - self.scale[0])
        low, high = (math.log(bound * across) for bound in self.ratio)
        root = (0.5 * (low + v * (high - low))).exp()
        sides = torch.stack([area.sqrt() * root, area.sqrt() / root])  # shares, [2, B, TRIES]
        fits = (sides <= 1).all(dim=0)
        chosen = fits.to(torch.uint8).argmax(dim=1, keepdim=True)  # the first that fits, or 0
        width, height, right, down = (t.gather(1, chosen)[:, 0] for t in (*sides, right, down))
        found = fits.any(dim=1)
        width, height = (torch.where(found, side, 1.0) for side in (width, height))
        x_shift, y_shift = (2 * right - 1) * (1 - width), (2 * down - 1) * (1 - height)
        none = torch.zeros_like(width)
        matrix = [[width, none, x_shift], [none, height, y_shift]]
        return _sample(x, matrix, outside="border")

    def on_picture(
        self, picture: Image.Image, size: tuple[int, int], rng: random.Random
    ) -> Image.Image:
        """A rectangle of ``picture`` of whole pixels, bicubic and antialiased, (width, height).

        Rectangles are timm's: if none of ten fits, the largest central one of an allowed shape.
        """
        with global_seed(rng.randrange(SEEDS)):
            top, left, height, width = RandomResizedCropAndInterpolation.get_params(
                picture, self.scale, self.ratio
            )
        cut_out = picture.crop((left, top, left + max(width, 1), top + max(height, 1)))
        return cut_out.resize(size, Image.Resampling.BICUBIC)


@dataclass(frozen=True, kw_only=True, slots=True)
class Jitter:
    """Change colours with probability ``p``, as torchvision's ``ColorJitter`` does.

    Brightness, contrast and saturation are scaled by 1 plus or minus their amounts (not below 0),
    the hue is turned by plus or minus ``hue`` of a full circle. Their order is drawn once for the
    whole batch. Images of one channel have neither saturation nor hue.
    """

    brightness: float
    contrast: float
    saturation: float
    hue: float
    p: float

    def __post_init__(self) -> None:
        share(self, "p")
        not_negative(self, "brightness", "contrast", "saturation")
        require(0 <= self.hue <= 0.5, f"hue: must be in [0, 0.5], got {self.hue}")

    def __call__(self, x: Tensor, draw: Draws) -> Tensor:
        """Transform ``x``."""
        amounts = (self.brightness, self.contrast, self.saturation)
        factors = [_each((1 + _around(x, draw, amount)).clamp_min(0)) for amount in amounts]
        turn = _around(x, draw, self.hue)
        changes: list[Callable[[Tensor], Tensor]] = [
            lambda y: (factors[0] * y).clamp(0, 1),
            lambda y: _mixed(y, grey(y).mean(dim=(1, 2, 3), keepdim=True), factors[1]),
            lambda y: _mixed(y, grey(y), factors[2]),
            lambda y: turn_hue(y, turn),
        ]
        place, jittered = draw.integer(ORDERS), x
        while changes:
            place, next_ = divmod(place, len(changes))
            jittered = changes.pop(next_)(jittered)
        return _sometimes(self.p, x, jittered, draw)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grey:
    """Remove colour with probability ``p``."""

    p: float

    def __post_init__(self) -> None:
        share(self, "p")

    def __call__(self, x: Tensor, draw: Draws) -> Tensor:
        """Transform ``x``."""
        return _sometimes(self.p, x, grey(x).expand_as(x), draw)


@dataclass(frozen=True, kw_only=True, slots=True)
class Blur:
    """Gaussian blur with probability ``p``; its width in pixels is uniform in ``sigma``.

    The kernel is not truncated: two matrix products weigh all pixels of a column, then of a row.
    Weights over the pixels of the image sum to 1, so that borders do not darken.
    """

    sigma: list[float]
    p: float

    def __post_init__(self) -> None:
        check_range("sigma", self.sigma)
        share(self, "p")

    def __call__(self, x: Tensor, draw: Draws) -> Tensor:
        """Transform ``x``."""
        low, high = self.sigma
        sigma = low + draw.uniform(x).view(-1, 1, 1, 1) * (high - low)
        down, across = (_gaussian(side, sigma) for side in x.shape[2:])  # [B, 1, H, H], [.., W, W]
        return _sometimes(self.p, x, (down @ x @ across.mT).clamp(0, 1), draw)


@dataclass(frozen=True, kw_only=True, slots=True)
class Solarize:
    """Invert pixels of at least ``threshold``, with probability ``p``."""

    threshold: float
    p: float

    def __post_init__(self) -> None:
        share(self, "threshold")
        share(self, "p")

    def __call__(self, x: Tensor, draw: Draws) -> Tensor:
        """Transform ``x``."""
        return _sometimes(self.p, x, torch.where(x >= self.threshold, 1 - x, x), draw)


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

    def on_picture(
        self, picture: Image.Image, size: tuple[int, int], rng: random.Random
    ) -> Image.Image:
        """Augmented ``picture`` of the same size."""
        change = _rand_augment(self.policy, int(TRANSLATE * min(size)))
        with global_seed(rng.randrange(SEEDS)):
            return change(picture.convert("RGB")).convert(picture.mode)


@dataclass(frozen=True, kw_only=True, slots=True)
class Augmentation:
    """The augmentations of one view: first those of single pictures, then those of batches."""

    to_pictures: tuple[ResizedCrop | RandAugment, ...]
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
            picture = transform.on_picture(picture, (width, height), rng)
        return pictures.as_array(picture)


def grey(x: Tensor) -> Tensor:
    """Luma [B, 1, H, W]; images of one channel are returned as they are."""
    if x.shape[1] == 1:
        return x
    return (x * x.new_tensor(LUMA).view(1, -1, 1, 1)).sum(dim=1, keepdim=True)


def turn_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue of ``x`` [B, 3, H, W] by ``turn`` [B] full circles, in the HSV hexagon."""
    if x.shape[1] == 1:
        return x
    red, green, blue = x.unbind(1)
    value, chroma = x.amax(dim=1), x.amax(dim=1) - x.amin(dim=1)
    safe = torch.where(chroma > 0, chroma, 1.0)  # grey pixels have no hue; avoids 0 / 0
    hue = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )  # in sixths of a circle
    hue = hue + 6 * turn.view(-1, 1, 1)
    sector = [(n + hue) % 6 for n in (5, 3, 1)]
    return torch.stack([value - chroma * torch.minimum(k, 4 - k).clamp(0, 1) for k in sector], 1)


def _each(amount: Tensor) -> Tensor:
    """One number for each image, [B] as [B, 1, 1, 1], to multiply images by."""
    return amount.view(-1, 1, 1, 1)


def _around(x: Tensor, draw: Draws, amount: float) -> Tensor:
    """Uniform random numbers between minus and plus ``amount``, [B]."""
    return (2 * draw.uniform(x) - 1) * amount


def _sometimes(p: float, x: Tensor, changed: Tensor, draw: Draws) -> Tensor:
    """For each image, ``changed`` with probability ``p``, else ``x``."""
    return torch.where(_each(draw.uniform(x) < p), changed, x)


def _mixed(x: Tensor, other: Tensor, share: Tensor) -> Tensor:
    return (share * x + (1 - share) * other).clamp(0, 1)


def _gaussian(side: int, sigma: Tensor) -> Tensor:
    """Weight of pixel j in blurred pixel i for ``sigma`` [B, 1, 1, 1], [B, 1, side, side]."""
    place = torch.arange(side, device=sigma.device, dtype=sigma.dtype)
    return (-0.5 * ((place[:, None] - place) / sigma) ** 2).softmax(dim=-1)


def _sample(x: Tensor, matrix: list[list[Tensor]], *, outside: str) -> Tensor:
    """Resample images; the affine ``matrix`` (2 rows of three [B]) maps output to input points."""
    rows = torch.stack([torch.stack(row, dim=1) for row in matrix], dim=1)  # [B, 2, 3]
    grid = F.affine_grid(rows, list(x.shape), align_corners=False)
    sampled = F.grid_sample(x, grid, padding_mode=outside, align_corners=False)
    return sampled.clamp(0, 1)  # rounding


@cache
def _rand_augment(policy: str, translate: int) -> auto_augment.RandAugment:
    return auto_augment.rand_augment_transform(policy, {"translate_const": translate})


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Seed the global generators that timm uses, Python's and numpy's; restore them afterwards."""
    before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
