"""Grids of noise levels along a diffusion trajectory.

Levels t are in model space, where pixels are in [-1, 1] (rrcm/noise/units.py). Equation numbers are
those of docs/theory.md.
"""

import math

import torch
from torch import Tensor

from rrcm.core.errors import ConfigError


def karras_grid(points: int, *, t_min: float, t_max: float, rho: float) -> Tensor:
    """Noise levels from ``t_max`` down to ``t_min``, float64 [points] (eq. 3).

    Source: Karras et al. (2022), arXiv:2206.00364, eq. 5.
    """
    i = torch.arange(points, dtype=torch.float64) / (points - 1)
    top, bottom = t_max ** (1 / rho), t_min ** (1 / rho)
    return (top + i * (bottom - top)) ** rho


def lognormal_weights(levels: Tensor, *, mean: float, std: float) -> Tensor:
    """Probability of drawing each pair of neighbouring levels, float64 [points - 1] (eq. 38).

    It is the probability that a normal ln t lies between the two, normalised to sum 1. ``levels``
    [points] are noise levels t, descending. Source: Song & Dhariwal (2023), arXiv:2310.14189, with
    mean -1.1 and std 2.
    """
    weights = -torch.special.ndtr((levels.double().log() - mean) / std).diff()
    if not weights.sum() > 0:
        raise ConfigError(f"mean, std: ln t = {mean} +- {std} is on no part of the grid of levels")
    return weights / weights.sum()


def grid_points(step: int, *, steps: int, first: int, last: int, rule: str) -> int:
    """Number of noise levels in the grid at training step ``step`` (eq. 4).

    ``ict`` doubles ``first`` up to ``last`` in stages of equal length (Song & Dhariwal, 2023,
    arXiv:2310.14189): thirds for 20 -> 80. ``reference`` is the rule of rRCM's released code: it
    rounds the stage up, so that the first stage lasts a single step.
    """
    if rule == "ict":
        stage_steps = max(1, math.floor(steps / (math.log2(last // first) + 1)))
        stage = step // stage_steps
    else:
        stage_steps = math.ceil(steps / math.log2(math.ceil(last / first) + 1))
        stage = math.ceil(step / stage_steps)
    return min(first * 2**stage, last) + 1
