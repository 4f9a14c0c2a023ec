r"""Denoised smoothing's purifier: one call of a network that predicts the clean picture.

Salman et al. (2020), arXiv:2003.01908: a denoiser D trained for one noise level in front of any
classifier, :math:`x \mapsto D(x)`. It works on pixels in [0, 1] and does not get the
noise level. Its output is not clipped.

Guarantee: no randomness; a row depends on that row alone.
"""

from dataclasses import dataclass

from torch import Tensor, nn

DIFFUSION = False  # whether the denoiser is a diffusion model, which predicts in other units


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """No constants."""

    normals = 0  # fields of standard normal numbers that one purification needs


class Purifier(nn.Module):
    """Maps noisy pixels [B, C, H, W] to the network's prediction of the clean ones."""

    def __init__(self, denoiser: nn.Module, cfg: Config) -> None:
        """``denoiser`` maps (pixels [B, C, H, W], zeros [B]) to pixels."""
        super().__init__()
        self.denoiser = denoiser

    def forward(self, x: Tensor, sigma: Tensor, z: Tensor | None = None) -> Tensor:
        """Denoised pixels [B, C, H, W] of ``x``; ``sigma`` [] and ``z`` are not used."""
        return self.denoiser(x, x.new_zeros(x.shape[0]))  # len(x) would freeze an export
