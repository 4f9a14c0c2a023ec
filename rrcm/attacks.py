"""The smoothed attack: images moved to where a smoothed classifier errs, to train on.

What is attacked is the mean prediction over m noisy copies whose noise stays the same from step to
step. PGD is that of SmoothAdv, Salman et al. (2019), arXiv:1906.04584, and, without a ball, of
SmoothMix; DDN is that of Rony et al. (2018), arXiv:1811.09600, as SmoothAdv uses it. Both promise:

- The network is in evaluation mode meanwhile, and afterwards in the modes that it had, whatever
  happened. Gradients of weights are as they were; they are not computed either, unless a compiled
  network cannot leave them out.
- Rows do not depend on their batch mates, and the number of draws is the same for all.
- Images come back detached, in [0, 1] where they were, and at most ``radius`` away (but for the
  rounding of a norm).

B = batch, K = classes, m = noisy copies per image. Equation numbers are those of docs/theory.md.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rrcm.draws import Draws
from rrcm.losses import classes, log_mean, log_probabilities, wrong

GAMMA = 0.05  # DDN's: by which share the norm shrinks where it fools, and grows where not
SLOWEST = 0.01  # the step that DDN's cosine ends at; it starts at 1
WHITE = 255  # DDN moves between pictures of 8 bits
TINY = 1e-12  # a length that nothing is divided by less than


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
    r"""Climb the loss of the mean prediction by steps of one length (eq. 39); each point, [B, ...].

    .. math:: \tilde x_{k+1} = \Pi_{\Vert \tilde x - x \Vert_2 \le r} \,
              \Pi_{[0, 1]} \left( \tilde x_k + a\, g_k / \Vert g_k \Vert_2 \right), \qquad
              g_k = -\nabla_{\tilde x} \log \frac1m \sum_i p_i(y \mid \tilde x_k + \varepsilon_i)

    from the image itself. Where a gradient is zero, a random direction takes its place, the same
    one at every step.

    Args:
        model: (noisy pixels [m B, C, H, W], sigma) -> logits.
        x: Images in [0, 1], [B, C, H, W].
        y: Classes [B], or probabilities [B, K].
        noise: The noise of each copy, of standard deviation ``sigma``, [m, B, C, H, W].
        sigma: What the model is told.
        steps: How many points there are.
        step: How far one is from the next one, in pixel units (a).
        radius: Of the ball around ``x``, in pixel units; ``inf`` is none.
        draw: Randomness; one call.
    """
    spare, points = draw.normal(x), [x]
    with evaluating(model):
        for _ in range(steps):
            uphill, _ = _uphill(model, points[-1], y, noise, sigma=sigma, spare=spare)
            points.append(project((points[-1] + step * uphill).clamp(0, 1), x, radius=radius))
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
    r"""The shortest way found to where most copies are misclassified (eq. 40), [B, C, H, W].

    Each of ``steps`` points, the first of which is the image itself, is judged by the class that
    most of its copies are given. After a step uphill the perturbation is scaled to a norm of its
    own, which starts at ``radius`` and shrinks by 5 % where the point fooled or else grows by 5 %,
    and rounded to pictures of 8 bits. An image for which no point fooled comes back as it is, and
    so does one that is misclassified already. What is found farther away than ``radius`` is moved
    back to it.

    Arguments are those of `pgd`; of labels that are probabilities the largest one is the class.
    """
    spare, offset = draw.normal(x), torch.zeros_like(x)
    farthest = _length(torch.maximum(x, 1 - x))  # that anything in the box is, [B]
    norm = torch.full_like(farthest, radius)
    best, shortest = offset, torch.full_like(farthest, math.inf)
    with evaluating(model):
        for k in range(steps - 1):
            uphill, log_p = _uphill(model, x + offset, y, noise, sigma=sigma, spare=spare)
            fools = _mode(log_p) != classes(y)
            best, shortest = _shorter(best, shortest, offset, fools)
            norm = (norm * torch.where(fools, 1 - GAMMA, 1 + GAMMA)).minimum(farthest)
            offset = _of_length(offset + _rate(k / steps) * uphill, norm)
            offset = torch.round(WHITE * (x + offset)).div(WHITE).clamp(0, 1) - x
        log_p = log_probabilities(model, x + offset + noise, sigma)  # and no gradient
    best, _ = _shorter(best, shortest, offset, _mode(log_p) != classes(y))
    return project(x + best, x, radius=radius)


def project(point: Tensor, x: Tensor, *, radius: float) -> Tensor:
    """The nearest to each ``point`` within ``radius`` of its ``x`` (L2), [B, C, H, W].

    Between two images in [0, 1] it is one too, rounding included.
    """
    offset = point - x
    return x + offset * _per_row((radius / _length(offset).clamp_min(TINY)).clamp_max(1))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """``model`` in evaluation mode, and then each of its modules in the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _uphill(
    model: nn.Module, point: Tensor, y: Tensor, noise: Tensor, *, sigma: Tensor, spare: Tensor
) -> tuple[Tensor, Tensor]:
    """Where the loss of the mean prediction grows fastest, of length 1, and log p [m, B, K].

    ``spare`` is the direction of a row whose gradient is zero.
    """
    with torch.enable_grad():
        point = point.detach().requires_grad_()
        log_p = log_probabilities(model, point + noise, sigma)
        (gradient,) = torch.autograd.grad(wrong(log_mean(log_p), y).sum(), point)
    largest = gradient.flatten(1).abs().amax(dim=1)
    direction = torch.where(_per_row(largest > 0), gradient, spare)
    # Scaled first: squares of what a confident network leaves of a gradient would be zero.
    direction = direction / _per_row(direction.flatten(1).abs().amax(dim=1))
    return direction / _per_row(_length(direction)), log_p.detach()


def _shorter(
    best: Tensor, shortest: Tensor, offset: Tensor, fools: Tensor
) -> tuple[Tensor, Tensor]:
    """The better perturbation of each row and its length: one that fools, and is shorter."""
    length = _length(offset)
    better = fools & (length < shortest)
    return torch.where(_per_row(better), offset, best), torch.where(better, length, shortest)


def _of_length(offset: Tensor, norm: Tensor) -> Tensor:
    return offset * _per_row(norm / _length(offset).clamp_min(TINY))


def _mode(log_p: Tensor) -> Tensor:
    """The class that most copies are given, the lowest one among equals, [B] of [m, B, K]."""
    votes = nn.functional.one_hot(log_p.argmax(dim=2), log_p.shape[2]).sum(dim=0)
    return votes.argmax(dim=1)


def _rate(done: float) -> float:
    """The length of DDN's step, half a cosine."""
    return SLOWEST + (1 - SLOWEST) * (1 + math.cos(math.pi * done)) / 2


def _length(x: Tensor) -> Tensor:
    return x.flatten(1).norm(dim=1)


def _per_row(values: Tensor) -> Tensor:
    """[B] as [B, 1, 1, 1]."""
    return values[:, None, None, None]
