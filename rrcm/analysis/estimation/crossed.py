"""A mean over seeds and images at once, with the chance of both. Equation of docs/theory.md."""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.stats import t as student

from rrcm.analysis.estimation.intervals import Estimate

LEAST = 1e-12  # a smaller p is reported as this


def mean(values: np.ndarray, *, confidence: float) -> tuple[Estimate, float]:
    """The mean of ``values`` [K seeds, N images], its interval, and p of a mean of 0 (eq. 55).

    Seeds and images are random and crossed: every seed has a value for every image. The interval
    speaks of other seeds and other images. If all values are equal, it is that value. p is 1 minus
    the confidence at which the interval would end at 0.

    Raises:
        ValueError: There are fewer than two seeds or images, so that one of them shows no spread.
    """
    seeds, images = values.shape
    if seeds < 2 or images < 2:
        raise ValueError(f"two seeds and two images at least, got {seeds} and {images}")
    value = float(values.mean())
    of_seeds, of_images = values.mean(axis=1), values.mean(axis=0)
    left = values - of_seeds[:, None] - of_images + value
    by_seeds = float(of_seeds.var(ddof=1)) / seeds
    rest = float((left**2).sum()) / ((seeds - 1) * (images - 1) * values.size)
    by_images = float(of_images.var(ddof=1)) / images

    def half(p: float) -> float:
        seeds_t, images_t = student.isf(p / 2, [seeds - 1, images - 1])
        both = seeds_t**2 * by_seeds + images_t**2 * max(by_images - rest, 0.0)
        return math.sqrt(max(both, images_t**2 * by_images))

    found = Estimate(
        value=value, low=value - half(1 - confidence), high=value + half(1 - confidence)
    )
    if not by_seeds and not by_images:
        return found, float(value == 0)
    excess = [half(p) - abs(value) for p in (LEAST, 1.0)]
    if excess[0] <= 0 or excess[1] >= 0:
        return found, LEAST if excess[0] <= 0 else 1.0
    return found, float(brentq(lambda p: half(p) - abs(value), LEAST, 1.0))
