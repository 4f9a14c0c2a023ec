r"""Denoisers: noise schedules, predictions of the clean image, and their files.

Everything is written in variance-exploding coordinates x + s z in model space (pixels in [-1, 1]),
where the noise of a certificate is s = 2 sigma. A variance-preserving (VP) process is the same up
to a factor, :math:`x_t / \sqrt{\bar\alpha_t} = x_0 + s(t) z`, and the input that its network was
trained on is computed from x + s z. The network's time t is an index into the schedule of a VP
process, and s itself for EDM. Equation numbers are those of docs/theory.md.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rrcm.core import registry
from rrcm.core.errors import CheckpointError, ConfigError
from rrcm.core.files import read_config, write_json
from rrcm.core.ranges import BATCH, positive, require
from rrcm.core.schema import parse
from rrcm.models.trained.base import checkpoint

SIGMA_DATA = 0.5  # standard deviation of natural images in model space (Karras et al., 2022)
LARGEST = 0.999  # largest beta of a step (Nichol & Dhariwal, 2021)
SLOW = 0.008  # offset s of their cosine schedule
RESCALED_STEPS = 1000  # number of steps that times are rescaled to


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A noise schedule, which maps times to noise levels.

    ``linear`` (Ho et al., 2020, arXiv:2006.11239) and ``cosine`` (Nichol & Dhariwal, 2021,
    arXiv:2102.09672) have ``steps`` discrete times 0, 1, …; with ``rescale`` the network's input is
    the time scaled to 1000 steps. ``edm`` (Karras et al., 2022, arXiv:2206.00364) is continuous and
    needs neither.
    """

    kind: Literal["linear", "cosine", "edm"]
    steps: int
    rescale: bool

    def __post_init__(self) -> None:
        if self.kind == "edm":
            require(self.steps == 0, f"steps: edm has no steps, set it to 0, got {self.steps}")
        else:
            require(self.steps > 1, f"steps: must be above 1, got {self.steps}")
            positive(self, "steps", most=BATCH)


Rule = Literal["first", "nearest", "exact"]


class Exact(nn.Module):
    """A module whose own buffers keep their type when it is cast, as casts are meant for networks.

    A noise level rounded to bfloat16 would be another time.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        exact = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's has no types
        for name, buffer in exact.items():
            setattr(self, name, buffer.to(getattr(self, name).device))
        return self


class Times(Exact):
    """Maps between times t and noise levels s of a schedule, float64, for tensors of any shape.

    Results depend on ``s`` or ``t`` alone, so that they can be exported with either as an input.
    """

    levels: Tensor  # s(t), ascending, [T]

    def __init__(self, cfg: Schedule) -> None:
        """Compute the table of a VP process in float64; it is not stored in checkpoints."""
        super().__init__()
        self.cfg = cfg
        self.discrete = cfg.kind != "edm"
        levels = _levels(cfg) if self.discrete else torch.empty(0, dtype=torch.float64)
        self.register_buffer("levels", levels, persistent=False)  # s(t), ascending, [T]

    def at(self, s: Tensor, rule: Rule) -> Tensor:
        """Time with noise level ``s`` (eq. 46).

        For discrete times, ``rule`` chooses the ``first`` time with at least as much noise, the
        ``nearest`` one in noise, or the ``exact`` time between two, where the logarithm of the
        noise is interpolated. EDM's time is exact under every rule. Levels beyond the schedule map
        to its ends.
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
        """Noise level s at times ``t``; between two times its logarithm is interpolated."""
        if not self.discrete:
            return t.double()
        below = t.long()
        above = (below + 1).clamp(max=len(self.levels) - 1)
        low, high = self.levels[below].log(), self.levels[above].log()
        return (low + (t - below) * (high - low)).exp()

    def spaced(self, t: Tensor, steps: int) -> list[Tensor]:
        """Start times of ``steps`` reverse steps from ``t`` to 0, equally spaced.

        Rounded if the schedule is discrete: round(t - i t / steps), i = 0, 1, …
        """
        starts = [t * (steps - i) / steps for i in range(steps)]
        return [t, *(start.round() for start in starts[1:])] if self.discrete else starts

    def told(self, t: Tensor) -> Tensor:
        """The network's time input: t, rescaled if set in the schedule, or (ln t) / 4 for EDM."""
        if not self.discrete:
            return t.log() / 4
        return t * (RESCALED_STEPS / self.cfg.steps) if self.cfg.rescale else t


class Denoiser(nn.Module):
    """Prediction of the clean image from a noisy one.

    ``network`` maps (input [B, C, H, W], time input [B]) to [B, C, H, W], or to twice as many
    channels, the second half for the variance of a reverse step.
    """

    def __init__(self, network: nn.Module, times: Times) -> None:
        """``network`` predicts the noise of a VP process, or EDM's preconditioned output."""
        super().__init__()
        self.network, self.times = network, times

    def forward(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor | None]:
        r"""Predicted clean image for ``x`` = x_0 + s z, and the variance channels or None.

        .. math:: \hat x_0 = x - s\, \hat\varepsilon\left( \frac{x}{\sqrt{1 + s^2}}, t \right),
            \qquad \hat x_0 = c_\mathrm{skip} x + c_\mathrm{out} F(c_\mathrm{in} x, \tfrac14 \ln s)

        (eq. 47, 48) for a VP process and EDM, with ``x`` [B, C, H, W] and noise s(t), ``t`` [] or
        [B]. Not clipped.
        """
        s = self.times.level(t).expand(x.shape[0])
        time = self.times.told(t).expand(x.shape[0]).to(x.dtype)
        c_in, c_skip, c_out = (c.to(x.dtype).view(-1, 1, 1, 1) for c in self.factors(s))
        output = self.network(c_in * x, time)
        channels = x.shape[1]
        variance = output[:, channels:] if output.shape[1] > channels else None
        return c_skip * x + c_out * output[:, :channels], variance

    def factors(self, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Factors c_in, c_skip and c_out of input, noisy image and output, shaped like ``s``."""
        if self.times.discrete:
            return torch.rsqrt(1 + s**2), torch.ones_like(s), -s
        total = s**2 + SIGMA_DATA**2
        return torch.rsqrt(total), SIGMA_DATA**2 / total, s * SIGMA_DATA * torch.rsqrt(total)


def _levels(cfg: Schedule) -> Tensor:
    r"""s(t) = sqrt((1 - ᾱ_t) / ᾱ_t) of a VP process, ascending, float64 [T] (eq. 45)."""
    if cfg.kind == "linear":  # from 1e-4 to 0.02 in 1000 steps, scaled for other numbers
        ends = (0.1 / cfg.steps, 20 / cfg.steps)
        beta = torch.linspace(*ends, cfg.steps, dtype=torch.float64)
    else:
        u = torch.arange(cfg.steps + 1, dtype=torch.float64) / cfg.steps
        bar = torch.cos((u + SLOW) / (1 + SLOW) * math.pi / 2) ** 2
        beta = 1 - bar[1:] / bar[:-1]
    kept = (1 - beta.clamp(max=LARGEST)).cumprod(dim=0)
    return ((1 - kept) / kept).sqrt()


def network(name: str, shape: dict[str, Any], *, where: str) -> nn.Module:
    """An untrained network of rrcm/diffusion/networks/``name``.py with the given ``shape``.

    Raises:
        ConfigError: There is no such network, or ``shape``, found at ``where``, is invalid.
    """
    module = registry.load("denoiser_networks", name)
    return module.Network(parse(shape, module.Config, where=where))


def build(config: dict[str, Any], tensors: dict[str, Tensor], *, source: str) -> nn.Module:
    """The denoiser of a ``config`` with the weights ``tensors``, in evaluation mode, frozen.

    A `Denoiser` if ``config`` has a schedule, else the network alone, which
    predicts the clean image in pixel units. ``tensors`` are named as the network's parameters;
    errors name ``source``, their file.

    Raises:
        CheckpointError: ``config`` is invalid, or ``tensors`` are of another network.
    """
    try:
        name, shape, declared = (config[key] for key in ("network", "shape", "schedule"))
        found = network(name, shape, where="shape")
        schedule = None if declared is None else parse(declared, Schedule, where="schedule")
    except (ConfigError, KeyError, TypeError) as error:
        raise CheckpointError(f"{source}: config.json: damaged ({error!r})") from None
    checkpoint.restore(found, tensors, source=source)
    whole = found if schedule is None else Denoiser(found, Times(schedule))
    return whole.eval().requires_grad_(False)


def save(
    folder: Path,
    tensors: dict[str, Tensor],
    *,
    network: str,
    shape: dict[str, Any],
    schedule: Schedule | None,
    params: dict[str, Any] | None = None,
) -> None:
    """Write ``model.safetensors`` and, beside it, the ``config.json`` that rebuilds the denoiser.

    ``tensors`` are the state dict of the network alone; without a ``schedule`` it predicts the
    clean image itself. ``params`` are the sections of params.yaml that made it, by name.
    """
    checkpoint.save(folder / "model.safetensors", tensors)
    declared = None if schedule is None else dataclasses.asdict(schedule)
    config = {"network": network, "shape": shape, "schedule": declared}
    write_json(folder / "config.json", config | ({"params": params} if params else {}))


def load(folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """The denoiser in ``folder``, as `build` makes it, and its ``config.json``.

    Raises:
        CheckpointError: Either file is missing or damaged, or they do not belong together.
    """
    config = read_config(folder)
    weights = folder / "model.safetensors"
    return build(config, checkpoint.load(weights)[0], source=str(weights)), config
