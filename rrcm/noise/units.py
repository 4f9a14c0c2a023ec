"""Units of sigma: the only place where sigma changes units.

Outside this file and the models, pixels are float32 in [0, 1], and sigma and radii are in those
units. Diffusion models use pixels in [-1, 1], where the same noise is twice as large: t = 2 sigma
(docs/theory.md, eq. 1).
"""

from typing import TypeVar

from torch import Tensor

S = TypeVar("S", float, Tensor)


def to_model_space(x: Tensor) -> Tensor:
    """Pixels in [0, 1] to pixels in [-1, 1], the space of the diffusion literature."""
    return 2 * x - 1


def to_pixels(u: Tensor) -> Tensor:
    """The inverse of `to_model_space`."""
    return (u + 1) / 2


def to_time(sigma: S) -> S:
    """The noise level t = 2 sigma in model space, from ``sigma`` in pixel space (eq. 1)."""
    return 2 * sigma


def to_sigma(t: S) -> S:
    """The inverse of `to_time`."""
    return t / 2
