"""Adversarial attacks on the smoothed classifier, for adversarial training.

PGD and DDN maximise the loss of the mean prediction over m noisy copies, whose noise is the same
at every step. PGD is that of SmoothAdv, Salman et al. (2019), arXiv:1906.04584, and, without a
bound on the norm, of SmoothMix; DDN is that of Rony et al. (2018), arXiv:1811.09600, as SmoothAdv
uses it. `noise_ascent` moves the noise of each copy by itself, for CAT-RS and reweighting.
Guarantees:

- The network is put in evaluation mode, and its modes are restored afterwards, also after an error.
  Gradients of weights are left alone, and are not computed, unless the network is compiled.
- Rows do not depend on other rows of the batch; the number of random draws is the same for all.
- Returned images are detached, in [0, 1] if they were, and within ``radius`` of the image (up to
  the rounding of a norm). Returned noise is detached.

B = batch, K = classes, m = noisy copies per image. Equation numbers are those of docs/theory.md.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from rrcm.training.engine.computing import evaluating
from rrcm.training.engine.draws import Draws
from rrcm.training.shared.losses import classes, cross_entropy, log_mean, log_probabilities

GAMMA = 0.05  # DDN: share by which the norm shrinks after a success and grows after a failure
SLOWEST = 0.01  # DDN: final step length of the cosine, which starts at 1
MAX_VALUE = 255  # DDN rounds its images to 8 bits
TINY = 1e-12  # smallest length to divide by


@torch.no_grad()
def pgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    noise: Tensor,
    *,
    sigma: Tensor,
    steps: int,
    step: float,
    radius: float,
    draw: Draws,
) -> list[Tensor]:
    r"""Projected gradient ascent on the loss of the mean prediction (eq. 39); all points, [B, ...].

    .. math:: \tilde x_{k+1} = \Pi_{\Vert \tilde x - x \Vert_2 \le r} \,
              \Pi_{[0, 1]} \left( \tilde x_k + a\, g_k / \Vert g_k \Vert_2 \right), \qquad
              g_k = -\nabla_{\tilde x} \log \frac1m \sum_i p_i(y \mid \tilde x_k + \varepsilon_i)

    starting at the image. A zero gradient is replaced by a random direction, the same one at every
    step.

    Args:
        model: (noisy pixels [m B, C, H, W], sigma) -> logits.
        x: Images in [0, 1], [B, C, H, W].
        y: Classes [B], or probabilities [B, K].
        noise: The noise of each copy, of standard deviation ``sigma``, [m, B, C, H, W].
        sigma: Noise level, the model's second argument.
        steps: Number of steps, and of returned points.
        step: Length of a step, in pixel units (a).
        radius: Radius of the ball around ``x``, in pixel units; ``inf`` is no bound.
        draw: Source of randomness; called once.
    """
    spare, points = draw.normal(x), [x]
    with evaluating(model):
        for _ in range(steps):
            ascent, _ = _ascent(model, points[-1], y, noise, sigma=sigma, spare=spare)
            points.append(project((points[-1] + step * ascent).clamp(0, 1), x, radius=radius))
    return points[1:]


@torch.no_grad()
def ddn(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    noise: Tensor,
    *,
    sigma: Tensor,
    steps: int,
    radius: float,
    draw: Draws,
) -> Tensor:
    r"""The smallest perturbation found that changes the majority class (eq. 40), [B, C, H, W].

    A point is adversarial if most of its noisy copies are misclassified. ``steps`` points are
    tried, first the image itself. After a step along the gradient the perturbation is scaled to the
    current norm, which starts at ``radius`` and shrinks by 5 % after an adversarial point, or else
    grows by 5 %, and is rounded to images of 8 bits. Images without an adversarial point are
    returned unchanged, and so are images that are misclassified already. Perturbations longer than
    ``radius`` are projected back to it.

    Arguments are those of `pgd`. If labels are probabilities, the most likely class is taken.
    """
    spare, offset = draw.normal(x), torch.zeros_like(x)
    farthest = _length(torch.maximum(x, 1 - x))  # longest perturbation within [0, 1], [B]
    norm = torch.full_like(farthest, radius)
    best, shortest = offset, torch.full_like(farthest, math.inf)
    with evaluating(model):
        for k in range(steps - 1):
            ascent, log_p = _ascent(model, x + offset, y, noise, sigma=sigma, spare=spare)
            adversarial = _mode(log_p) != classes(y)
            best, shortest = _shorter(best, shortest, offset, adversarial)
            norm = (norm * torch.where(adversarial, 1 - GAMMA, 1 + GAMMA)).minimum(farthest)
            cosine = (1 + math.cos(math.pi * (k / steps))) / 2
            offset = _of_length(offset + (SLOWEST + (1 - SLOWEST) * cosine) * ascent, norm)
            offset = torch.round(MAX_VALUE * (x + offset)).div(MAX_VALUE).clamp(0, 1) - x
        log_p = log_probabilities(model, x + offset + noise, sigma)
    best, _ = _shorter(best, shortest, offset, _mode(log_p) != classes(y))
    return project(x + best, x, radius=radius)


@torch.no_grad()
def noise_ascent(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    noise: Tensor,
    *,
    sigma: Tensor,
    steps: int,
    step: float,
    onto: Callable[[Tensor, Tensor], Tensor],
    until_wrong: bool,
    draw: Draws,
) -> Tensor:
    r"""Gradient ascent of the noise of each copy on that copy's own loss (eq. 66), as ``noise``.

    .. math:: v_{k+1} = \Pi \left( v_k + a\, g_k / \Vert g_k \Vert_2 \right), \qquad
              g_k = -\nabla_v \sum_c y_c \log p(c \mid x + v_k), \qquad v_0 = \varepsilon

    \Pi is ``onto``, of noise and what it started from, [m B, C, H, W] both. With
    ``until_wrong`` the first noise is kept that makes its copy misclassified. Other arguments are
    those of `pgd`.
    """
    m, start = len(noise), noise.flatten(0, 1)
    spare = draw.normal(x).repeat(m, 1, 1, 1)
    x, y = x.repeat(m, 1, 1, 1), y.repeat(m, *[1] * (y.ndim - 1))
    moved = start
    with evaluating(model):
        for _ in range(steps):
            ascent, log_p = _ascent(model, x, y, moved[None], sigma=sigma, spare=spare)
            stays = until_wrong & (_mode(log_p) != classes(y))
            moved = torch.where(_per_row(stays), moved, onto(moved + step * ascent, start))
    return moved.unflatten(0, noise.shape[:2])


def project(point: Tensor, x: Tensor, *, radius: float) -> Tensor:
    """Projection of each ``point`` on the L2 ball of ``radius`` around its ``x``, [B, C, H, W].

    If both images are in [0, 1], so is the result, rounding included.
    """
    offset = point - x
    return x + offset * _per_row((radius / _length(offset).clamp_min(TINY)).clamp_max(1))


def _ascent(
    model: nn.Module, point: Tensor, y: Tensor, noise: Tensor, *, sigma: Tensor, spare: Tensor
) -> tuple[Tensor, Tensor]:
    """Unit gradient of the loss of the mean prediction, [B, C, H, W], and log p [m, B, K].

    ``spare`` is the direction for rows whose gradient is zero.
    """
    with torch.enable_grad():
        point = point.detach().requires_grad_()
        log_p = log_probabilities(model, point + noise, sigma)
        (gradient,) = torch.autograd.grad(cross_entropy(log_mean(log_p), y).sum(), point)
    largest = gradient.flatten(1).abs().amax(dim=1)
    direction = torch.where(_per_row(largest > 0), gradient, spare)
    # Scaled before the norm: squares of a confident network's gradients would underflow to 0.
    direction = direction / _per_row(direction.flatten(1).abs().amax(dim=1))
    return direction / _per_row(_length(direction)), log_p.detach()


def _shorter(
    best: Tensor, shortest: Tensor, offset: Tensor, adversarial: Tensor
) -> tuple[Tensor, Tensor]:
    """The shortest adversarial perturbation so far of each row, and its length."""
    length = _length(offset)
    better = adversarial & (length < shortest)
    return torch.where(_per_row(better), offset, best), torch.where(better, length, shortest)


def as_long(noise: Tensor, start: Tensor) -> Tensor:
    """``noise`` [B, C, H, W], each scaled to the length of its ``start``."""
    return _of_length(noise, _length(start))


def _of_length(offset: Tensor, norm: Tensor) -> Tensor:
    return offset * _per_row(norm / _length(offset).clamp_min(TINY))


def _mode(log_p: Tensor) -> Tensor:
    """Majority class [B] of copies with log-probabilities [m, B, K]; ties go to the lowest."""
    votes = nn.functional.one_hot(log_p.argmax(dim=2), log_p.shape[2]).sum(dim=0)
    return votes.argmax(dim=1)


def _length(x: Tensor) -> Tensor:
    return x.flatten(1).norm(dim=1)


def _per_row(values: Tensor) -> Tensor:
    """[B] as [B, 1, 1, 1]."""
    return values[:, None, None, None]
