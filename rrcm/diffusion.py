r"""Diffusion as denoising: noise schedules, and networks as predictions of the clean image.

A process that scales the image down (variance preserving, VP) is one that does not, seen through a
factor: :math:`x_t / \sqrt{\bar\alpha_t} = x_0 + s(t) z`. So everything here is said of x + s z, in
model space (pixels in [-1, 1]), where the noise of a certificate is s = 2 sigma; what a network was
trained to be given is computed from it. t is the network's own time: a place in the schedule of a
VP process, s itself for EDM. Equation numbers are those of docs/theory.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from rrcm.limits import BATCH, positive, require

SIGMA_DATA = 0.5  # standard deviation of natural images in model space (Karras et al., 2022)
LARGEST = 0.999  # share of the variance that a step may replace (Nichol & Dhariwal, 2021)
SLOW = 0.008  # where their cosine starts
TOLD = 1000  # steps that a network believes there are, where times are rescaled


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A noise schedule: which noise there is at which time.

    ``linear`` (Ho et al., 2020, arXiv:2006.11239) and ``cosine`` (Nichol & Dhariwal, 2021,
    arXiv:2102.09672) have ``steps`` times 0, 1, …; with ``rescale`` a network is told them as if
    there were 1000. ``edm`` (Karras et al., 2022, arXiv:2206.00364) has all times, needs neither.
    """

    kind: Literal["linear", "cosine", "edm"]
    steps: int
    rescale: bool

    def __post_init__(self) -> None:
        """A process in discrete time has steps."""
        if self.kind == "edm":
            require(self.steps == 0, f"steps: edm has no steps, set it to 0, got {self.steps}")
        else:
            require(self.steps > 1, f"steps: must be above 1, got {self.steps}")
            positive(self, "steps", most=BATCH)


Rule = Literal["first", "nearest", "exact"]


class Times(nn.Module):
    """A schedule as functions between times t and noise levels s, float64, of tensors of any shape.

    A function of ``s`` or ``t`` alone, so that it can be exported with either as an input.
    """

    def __init__(self, cfg: Schedule) -> None:
        """The table of a VP process is computed in float64, and not part of a checkpoint."""
        super().__init__()
        self.cfg = cfg
        self.discrete = cfg.kind != "edm"
        levels = _levels(cfg) if self.discrete else torch.empty(0, dtype=torch.float64)
        self.register_buffer("levels", levels, persistent=False)  # s(t), ascending, [T]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Times":
        """Follow a module to its device, and stay in float64 whatever it is cast to."""
        exact = self.levels
        super()._apply(fn, recurse)
        self.levels = exact.to(self.levels.device)
        return self

    def at(self, s: Tensor, rule: Rule) -> Tensor:
        """The time whose noise is ``s`` (eq. 46).

        Of discrete times it is the ``first`` with at least as much noise, the ``nearest`` one in
        noise, or with ``exact`` a number between two times: where the logarithm of the noise,
        interpolated, is that of ``s``. EDM has every time, whatever the rule. Beyond either end of
        the schedule it is that end.
        """
        s = s.double()
        if not self.discrete:
            return s
        last = len(self.levels) - 1
        above = (self.levels < s[..., None]).sum(dim=-1).clamp(max=last)  # the first not below
        below = (above - 1).clamp(min=0)
        low, high = self.levels[below], self.levels[above]
        if rule == "first":
            return above.double()
        if rule == "nearest":
            return torch.where((s - low).abs() < (high - s).abs(), below, above).double()
        share = (s.log() - low.log()) / (high.log() - low.log()).clamp_min(1e-12)
        return below + share.clamp(0, 1)

    def level(self, t: Tensor) -> Tensor:
        """The noise s at times ``t``; between two times, the logarithm is interpolated."""
        if not self.discrete:
            return t.double()
        below = t.long()
        above = (below + 1).clamp(max=len(self.levels) - 1)
        low, high = self.levels[below].log(), self.levels[above].log()
        return (low + (t - below) * (high - low)).exp()

    def spaced(self, t: Tensor, steps: int) -> list[Tensor]:
        """``t`` and the times below it at which ``steps`` reverse steps start, equally far apart.

        Whole numbers where the schedule has no others: round(t - i t / steps), i = 0, 1, …
        """
        found = [t * (steps - i) / steps for i in range(steps)]
        return [t, *(f.round() for f in found[1:])] if self.discrete else found

    def told(self, t: Tensor) -> Tensor:
        """What a network is told of the time: t, perhaps rescaled, or (ln t) / 4 of EDM."""
        if not self.discrete:
            return t.log() / 4
        return t * (TOLD / self.cfg.steps) if self.cfg.rescale else t


class Denoiser(nn.Module):
    """The clean image that a network predicts from a noisy one.

    ``network`` maps (input [B, C, H, W], what it is told [B]) to [B, C, H, W], or to twice as many
    channels, of which the others say how much noise a reverse step has.
    """

    def __init__(self, network: nn.Module, times: Times) -> None:
        """Trained to predict the noise of a VP process, or EDM's preconditioned output."""
        super().__init__()
        self.network, self.times = network, times

    def forward(
        self, x: Tensor, t: Tensor, condition: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        r"""The clean image in ``x`` = x_0 + s z, and what else the network says, or None.

        .. math:: \hat x_0 = x - s\, \hat\varepsilon\left( \frac{x}{\sqrt{1 + s^2}}, t \right),
            \qquad \hat x_0 = c_\mathrm{skip} x + c_\mathrm{out} F(c_\mathrm{in} x, \tfrac14 \ln s)

        (eq. 47, 48), both of ``x`` [B, C, H, W], with noise s(t) for ``t`` [] or [B]; not clipped.
        ``condition`` [B, D] is for networks that take one.
        """
        s = self.times.level(t).expand(x.shape[0])
        told = self.times.told(t).expand(x.shape[0]).to(x.dtype)
        c_in, c_skip, c_out = (c.to(x.dtype).view(-1, 1, 1, 1) for c in self.factors(s))
        found = self.network(c_in * x, told, *([] if condition is None else [condition]))
        channels = x.shape[1]
        more = found[:, channels:] if found.shape[1] > channels else None
        return c_skip * x + c_out * found[:, :channels], more

    def factors(self, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the input, the noisy image and the output are multiplied by, each as ``s``."""
        if self.times.discrete:
            return torch.rsqrt(1 + s**2), torch.ones_like(s), -s
        total = s**2 + SIGMA_DATA**2
        return torch.rsqrt(total), SIGMA_DATA**2 / total, s * SIGMA_DATA * torch.rsqrt(total)


def _levels(cfg: Schedule) -> Tensor:
    r"""s(t) = sqrt((1 - ᾱ_t) / ᾱ_t) of a VP process, ascending, float64 [T] (eq. 45)."""
    if cfg.kind == "linear":  # from 1e-4 to 0.02 in a thousand steps, and as far in others
        ends = (0.1 / cfg.steps, 20 / cfg.steps)
        beta = torch.linspace(*ends, cfg.steps, dtype=torch.float64)
    else:
        u = torch.arange(cfg.steps + 1, dtype=torch.float64) / cfg.steps
        bar = torch.cos((u + SLOW) / (1 + SLOW) * math.pi / 2) ** 2
        beta = 1 - bar[1:] / bar[:-1]
    kept = (1 - beta.clamp(max=LARGEST)).cumprod(dim=0)
    return ((1 - kept) / kept).sqrt()
