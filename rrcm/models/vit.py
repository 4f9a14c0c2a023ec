"""The rRCM vision transformer (Lei et al., 2025): a ViT that is told how noisy its input is.

Tokens are [cls, time, patches]. The time token is the raw sinusoidal embedding of 250 ln t, with no
parameters of its own. Attribute names and shapes are those of the reference implementation's
checkpoints. Normalisation, the input scale c_in and t = 2 sigma live in here (docs/theory.md, eq. 9
and 10), so that everything outside speaks of pixels in [0, 1].
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

import rrcm.models._torchvision  # noqa: F401 (timm imports torchvision)
from rrcm import noise
from rrcm.errors import ConfigError
from rrcm.registry import suggest

from timm.layers import PatchEmbed, trunc_normal_  # isort: skip (after _torchvision)
from timm.models.vision_transformer import Block  # isort: skip

SIZES = {  # name: (width, depth, heads); Lei et al., table 6, and one for 8 x 8 digits
    "tiny": (64, 4, 4),
    "s": (512, 6, 8),
    "b": (768, 12, 12),
    "b_deep": (768, 24, 24),
}
SIGMA_DATA = 0.5  # standard deviation of natural images in model space (Karras et al., 2022)


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Shape of the network: a named size, its input, and the projector used in pre-training.

    ``position_std`` is the scale at which learned positions start. The paper's 0.02 is small beside
    patches of many pixels after many steps; on digits, positions must be heard from step 1.
    """

    size: str
    image_size: int
    channels: int
    patch_size: int
    position_std: float
    projector_width: int
    projector_dim: int

    def __post_init__(self) -> None:
        """Refuse an unknown size and patches that do not tile the image."""
        if self.size not in SIZES:
            raise ConfigError(
                f"size: no {self.size!r}, only {', '.join(SIZES)}.{suggest(self.size, [*SIZES])}"
            )
        if self.image_size % self.patch_size:
            raise ConfigError(
                f"patch_size: {self.patch_size} does not divide image_size {self.image_size}"
            )

    @property
    def width(self) -> int:
        """Dimension D of the representation."""
        return SIZES[self.size][0]

    @property
    def depth(self) -> int:
        """Number of transformer blocks."""
        return SIZES[self.size][1]


class Encoder(nn.Module):
    """Noisy pixels and their noise level to a representation."""

    def __init__(self, cfg: Config) -> None:
        """Initialise as PyTorch does by default, but for the embeddings."""
        super().__init__()
        width, depth, heads = SIZES[cfg.size]
        norm = partial(nn.LayerNorm, eps=1e-5)
        self.patch_embed = PatchEmbed(cfg.image_size, cfg.patch_size, cfg.channels, width)
        self.cls_token = nn.Parameter(trunc_normal_(torch.empty(1, 1, width), std=0.02))
        self.pos_embed = nn.Parameter(
            torch.randn(1, 2 + self.patch_embed.num_patches, width) * cfg.position_std
        )
        self.blocks = nn.ModuleList(
            Block(width, heads, mlp_ratio=4, qkv_bias=False, norm_layer=norm) for _ in range(depth)
        )
        self.norm = norm(width)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Representations [B, D] of ``x`` [B, C, H, W], noisy pixels, at ``sigma`` [B] or []."""
        batch = x.shape[0]  # not len(x), which would freeze the batch size of an export
        t = noise.to_time(sigma).expand(batch)  # [B]
        c_in = torch.rsqrt(t**2 + SIGMA_DATA**2)
        patches = self.patch_embed(noise.to_model_space(x) * c_in.view(-1, 1, 1, 1))  # [B, L, D]
        cls = self.cls_token.expand(batch, -1, -1)
        time = time_embedding(t, self.cls_token.shape[-1])[:, None]
        tokens = torch.cat([cls, time, patches], dim=1) + self.pos_embed  # [B, 2 + L, D]
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens[:, 0])


class Projector(nn.Sequential):
    """Representation to the space of the contrastive loss: 3 linear layers, BatchNorm, no bias."""

    def __init__(self, cfg: Config) -> None:
        """Widths D -> projector_width -> projector_width -> projector_dim."""
        hidden = cfg.projector_width
        super().__init__(
            *(nn.Linear(cfg.width, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()),
            *(nn.Linear(hidden, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()),
            nn.Linear(hidden, cfg.projector_dim, bias=False),
        )


def time_embedding(t: Tensor, width: int) -> Tensor:
    """cos | sin of 250 ln t at ``width / 2`` frequencies, 1 to almost 1e-4, [B, width] (eq. 10).

    In float64: the angles reach 1,500 radians, where float32 has four digits left behind the point.
    """
    k = torch.arange(width // 2, dtype=torch.float64, device=t.device)
    frequencies = torch.exp(-math.log(1e4) * k / (width // 2))
    angles = 250 * torch.log(t.double())[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1).float()
