r"""DensePure: a reverse diffusion of b random steps from the noisy picture to a clean one.

Xiao et al. (2023), arXiv:2211.00322. Steps start at b equally spaced times between t* and 0; a step
goes from noise s to the next s'. The network gets the times of its own schedule; all else is the
posterior of the process re-spaced to them. In variance-exploding coordinates (eq. 45) that is

.. math:: \hat x_0 = \operatorname{clamp}(D(x, t), -1, 1), \qquad
    x \leftarrow \hat x_0 + \frac{s'^2}{s^2} (x - \hat x_0) + \sqrt v\, z

(eq. 50), which is the step of Ho et al. (2020), arXiv:2006.11239, divided by
:math:`\sqrt{\bar\alpha'}`. Its variance is the posterior's, ``small``, that of the step itself,
``large``, or ``learned``: a network of Nichol & Dhariwal (2021), arXiv:2102.09672, predicts f,
which interpolates between both in the logarithm:

.. math:: v_\text{small} = s'^2 \Bigl(1 - \frac{s'^2}{s^2}\Bigr), \qquad
    v_\text{large} = \frac{\beta}{\bar\alpha'}
        = \frac{s^2 (1 + s'^2)}{1 + s^2} \Bigl(1 - \frac{s'^2}{s^2}\Bigr), \qquad
    v = v_\text{large}^{f}\, v_\text{small}^{1 - f}.

The last step has no noise and ends at its prediction, so that b = 1 is `one_shot`, bit for bit.

Guarantee: a row depends on that row and its own normal numbers alone.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from rrcm.core.errors import ConfigError
from rrcm.core.ranges import COPIES, positive
from rrcm.models.trained.denoiser import Denoiser, Rule
from rrcm.noise import units

DIFFUSION = True  # whether the denoiser is a diffusion model


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """``steps`` is the number of network calls (b); ``rule`` chooses the time of the first."""

    steps: int
    rule: Rule
    variance: Literal["learned", "small", "large"]

    def __post_init__(self) -> None:
        positive(self, "steps", most=COPIES)

    @property
    def normals(self) -> int:
        """Fields of standard normal numbers that one purification needs: not for the last step."""
        return self.steps - 1


class Purifier(nn.Module):
    """Maps noisy pixels [B, C, H, W] and normal numbers to pixels in [0, 1]."""

    def __init__(self, denoiser: Denoiser, cfg: Config) -> None:
        super().__init__()
        self.denoiser, self.cfg = denoiser, cfg

    def forward(self, x: Tensor, sigma: Tensor, z: Tensor | None = None) -> Tensor:
        """Pixels [B, C, H, W] in [0, 1] from ``x`` with noise ``sigma`` [].

        Args:
            x: Noisy pixels [B, C, H, W].
            sigma: Their noise level, [].
            z: Standard normal numbers [B, steps - 1, C, H, W], each field for one step.

        Raises:
            ConfigError: The variance is ``learned``, but the network predicts none.
        """
        times = self.denoiser.times
        t = times.at(units.to_time(sigma.double()), self.cfg.rule)
        starts = times.spaced(t, self.cfg.steps)
        x = units.to_model_space(x)
        for i in range(self.cfg.steps - 1):
            assert z is not None  # with more than one step
            clean, rest = self.denoiser(x, starts[i])
            clean, s, less = clean.clamp(-1, 1), times.level(starts[i]), times.level(starts[i + 1])
            spread = self._spread(rest, s, less, x)
            x = clean + ((less / s) ** 2).to(x.dtype) * (x - clean) + spread * z[:, i]
        clean, _ = self.denoiser(x, starts[-1])
        return units.to_pixels(clean.clamp(-1, 1))

    def _spread(self, rest: Tensor | None, s: Tensor, less: Tensor, x: Tensor) -> Tensor:
        """The standard deviation sqrt(v) of a step from ``s`` to ``less``."""
        # The factor common to both variances is 0 where two times are equal, so it stays outside
        # the logarithm.
        replaced = 1 - (less / s) ** 2
        small, large = less**2, s**2 * (1 + less**2) / (1 + s**2)
        if self.cfg.variance != "learned":
            chosen = small if self.cfg.variance == "small" else large
            return (replaced * chosen).sqrt().to(x.dtype)
        if rest is None:
            raise ConfigError(
                "purify: variance: learned, but the denoiser's network predicts no variance; use "
                "small or large"
            )
        f = (rest + 1) / 2
        power = f * large.log().to(x.dtype) + (1 - f) * small.log().to(x.dtype)
        return replaced.sqrt().to(x.dtype) * torch.exp(power / 2)
