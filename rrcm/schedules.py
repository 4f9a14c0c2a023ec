"""Schedules: noise levels, how many of them, momentum, the learning rate, weights that set in.

Noise levels t are in model space (pixels in [-1, 1]); see noise.py. Equation numbers are those of
docs/theory.md.
"""

import math

import torch
from torch import Tensor

from rrcm.errors import ConfigError


def karras_grid(points: int, *, t_min: float, t_max: float, rho: float) -> Tensor:
    """Noise levels from ``t_max`` down to ``t_min``, float64 [points] (eq. 3).

    Source: Karras et al. (2022), arXiv:2206.00364, eq. 5.
    """
    i = torch.arange(points, dtype=torch.float64) / (points - 1)
    top, bottom = t_max ** (1 / rho), t_min ** (1 / rho)
    return (top + i * (bottom - top)) ** rho


def lognormal_weights(levels: Tensor, *, mean: float, std: float) -> Tensor:
    """How often each pair of neighbours is drawn, float64 [points - 1], sum 1 (eq. 38).

    A weight is the probability that a normal ln t lies between the two. ``levels`` [points] are
    noise levels t, descending. Source: Song & Dhariwal (2023), arXiv:2310.14189, whose mean is
    -1.1 and whose std is 2.
    """
    weights = -torch.special.ndtr((levels.double().log() - mean) / std).diff()
    if not weights.sum() > 0:
        raise ConfigError(f"mean, std: ln t = {mean} +- {std} is on no part of the grid of levels")
    return weights / weights.sum()


def grid_points(step: int, *, steps: int, first: int, last: int, rule: str) -> int:
    """How many noise levels the grid has at training step ``step`` (eq. 4).

    ``ict`` doubles ``first`` up to ``last`` in stages of equal length (Song & Dhariwal, 2023,
    arXiv:2310.14189): thirds for 20 -> 80. ``reference`` is what rRCM's released code
    does: it rounds the stage up, so that the first stage lasts a single step.
    """
    if rule == "ict":
        stage_steps = max(1, math.floor(steps / (math.log2(last // first) + 1)))
        stage = step // stage_steps
    else:
        stage_steps = math.ceil(steps / math.log2(math.ceil(last / first) + 1))
        stage = math.ceil(step / stage_steps)
    return min(first * 2**stage, last) + 1


def ema_momentum(step: int, *, steps: int, start: float, end: float, steepness: float) -> float:
    """Momentum of the contrastive target at ``step`` (eq. 5).

    A sigmoid from ``start`` to almost ``end``: all but 1 - tanh(steepness / 2) of the way.
    """
    span = end - start
    level = math.sqrt(min(step, steps) / steps * (end**2 - start**2) + start**2)
    a = 2 / (1 + math.exp(-steepness * (level - start) / span)) - 1
    return a * end + (1 - a) * start


def warmup_cosine(step: int, *, steps: int, warmup: int) -> float:
    """Share of the peak learning rate at ``step``: linear up, then half a cosine down to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def multi_step(done: float, *, milestones: list[float], gamma: float) -> float:
    """Share of the peak learning rate once a share ``done`` of the training is behind."""
    return gamma ** sum(done >= share for share in milestones)


def ramp(done: float, *, defer: float = 0.0, warmup: float = 0.0) -> float:
    """How much of a weight or a radius counts once a share ``done`` of the training is behind.

    Nothing before ``defer``, then linearly more over ``warmup``, then all of it. Both are shares of
    the training.
    """
    if done < defer:
        return 0.0
    return min(1.0, (done - defer) / warmup) if warmup else 1.0
