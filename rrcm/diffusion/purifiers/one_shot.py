r"""DDS: one call of a diffusion model, which predicts the clean picture.

Carlini et al. (2023), arXiv:2206.10550. A picture with noise sigma in pixel units has s = 2 sigma
in model space, which the schedule reaches at time t*. With u = 2x - 1,

.. math:: \hat x_0 = \operatorname{clamp}\bigl(D(u, t^*), -1, 1\bigr), \qquad
    x \mapsto \tfrac12 (\hat x_0 + 1).

``first`` is the authors' rule for t*. The schedule's noise at t* may be slightly more than s: the
model then assumes slightly more noise than there is, and the certificate still is for sigma.

Guarantee: no randomness; a row depends on that row alone.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from rrcm.models.trained.denoiser import Denoiser, Rule
from rrcm.noise import units

DIFFUSION = True  # whether the denoiser is a diffusion model


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """``rule`` chooses the time of the schedule for the noise of the picture (eq. 46)."""

    normals = 0  # fields of standard normal numbers that one purification needs
    rule: Rule


class Purifier(nn.Module):
    """Maps noisy pixels [B, C, H, W] to pixels in [0, 1]."""

    def __init__(self, denoiser: Denoiser, cfg: Config) -> None:
        super().__init__()
        self.denoiser, self.cfg = denoiser, cfg

    def forward(self, x: Tensor, sigma: Tensor, z: Tensor | None = None) -> Tensor:
        """Pixels [B, C, H, W] in [0, 1] from ``x`` with noise ``sigma`` []; ``z`` is not used."""
        t = self.denoiser.times.at(units.to_time(sigma.double()), self.cfg.rule)
        clean, _ = self.denoiser(units.to_model_space(x), t)
        return units.to_pixels(clean.clamp(-1, 1))
