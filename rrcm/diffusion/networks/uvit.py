"""U-ViT, Bao et al. (2023), arXiv:2209.12152: a transformer with the long skips of a UNet.

Tokens are [time, patches, condition]. The time token is the raw sinusoidal embedding of the time
input, without learned parameters; the condition, if any, is a linear map of a vector. Each block of
the second half also gets the output of the opposite block in the first half.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from timm.layers import PatchEmbed, trunc_normal_
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rrcm.core.ranges import SIDE, WIDTH, dimensions, not_negative, positive, require
from rrcm.models.trained.base.network import require_size

SIZES = {"small": (512, 13, 8)}  # name: (width, depth, heads); their table 5, and CIFAR-10's
STD = 0.02  # initial standard deviation of matrices


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Shape of the network: its size, image and time input.

    ``size`` is a name (`SIZES`) or WIDTHxDEPTHxHEADS with an odd depth, such as ``64x5x4``: one
    block in the middle, and as many before as after it. ``time_scale`` multiplies the time input
    before its embedding by sines and cosines of periods from 2 pi up: 1 for the times of a VP
    process, 0 to 1000, and 1000 for (ln s) / 4 of EDM. ``position_std`` is the initial scale of
    learned position embeddings: the authors' 0.02 is small compared with patch embeddings, so that
    positions have little effect for many steps. ``condition`` is the number of dimensions of the
    vector that the network is told, 0 for none.
    """

    size: str
    image_size: int
    channels: int
    patch_size: int
    position_std: float
    time_scale: float
    condition: int = 0

    def __post_init__(self) -> None:
        positive(self, "image_size", "patch_size", most=SIDE)
        positive(self, "channels", most=WIDTH)
        positive(self, "position_std", "time_scale")
        not_negative(self, "condition", most=WIDTH)
        _, depth, _ = self.dimensions
        require(depth % 2 == 1, f"size: depth {depth} must be odd, for a block in the middle")
        require(
            self.image_size % self.patch_size == 0,
            f"patch_size: {self.patch_size} does not divide image_size {self.image_size}",
        )

    @property
    def dimensions(self) -> tuple[int, int, int]:
        """Width, depth and heads."""
        return dimensions(self.size, SIZES)


class Network(nn.Module):
    """Maps an image, a time input and a condition, if any, to an image.

    With ``recompute``, activations inside a block are not kept for the backward pass but computed
    again there: the same gradients, in less memory and more time.
    """

    supports_recompute: ClassVar[bool] = True
    recompute: bool = False

    def __init__(self, cfg: Config) -> None:
        """Initialise as the authors do, except positions: matrices of scale 0.02, biases 0."""
        super().__init__()
        self.cfg, (width, depth, heads) = cfg, cfg.dimensions
        self.patch_embed = PatchEmbed(cfg.image_size, cfg.patch_size, cfg.channels, width)
        tokens = 1 + self.patch_embed.num_patches + (cfg.condition > 0)
        self.pos_embed = nn.Parameter(torch.randn(1, tokens, width) * cfg.position_std)
        self.blocks = nn.ModuleList(
            Block(width, heads, mlp_ratio=4, qkv_bias=False, norm_layer=nn.LayerNorm)
            for _ in range(depth)
        )
        self.skips = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth // 2))
        self.norm = nn.LayerNorm(width)
        self.to_pixels = nn.Linear(width, cfg.patch_size**2 * cfg.channels)
        self.smooth = nn.Conv2d(cfg.channels, cfg.channels, 3, padding=1)
        self.condition_embed = nn.Linear(cfg.condition, width) if cfg.condition else None
        for module in self.modules():
            if isinstance(module, nn.Linear):
                trunc_normal_(module.weight, std=STD)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor, told: Tensor, condition: Tensor | None = None) -> Tensor:
        """Output [B, C, H, W] for ``x`` [B, C, H, W] and time input ``told`` [B] or [].

        ``condition`` is [B, D]; where a conditional network is given none, it is zeros, the mean of
        what it was trained with.

        Raises:
            ConfigError: The images are not of the declared size.
        """
        require_size(x, (self.cfg.channels, self.cfg.image_size, self.cfg.image_size))
        batch = x.shape[0]  # not len(x), which would freeze the batch size of an export
        width = self.pos_embed.shape[-1]
        time = time_embedding(self.cfg.time_scale * told.double(), width).to(x.dtype)
        time = time.expand(batch, width)[:, None]
        tokens = [time, self.patch_embed(x)]
        if self.condition_embed is not None:
            given = x.new_zeros(batch, self.cfg.condition) if condition is None else condition
            tokens.append(self.condition_embed(given)[:, None])
        last = self.norm(self._through(torch.cat(tokens, dim=1) + self.pos_embed))
        patches = self.to_pixels(last)[:, 1 : 1 + self.patch_embed.num_patches]
        return self.smooth(self._picture(patches))

    def _through(self, tokens: Tensor) -> Tensor:
        """Output of the last block, [B, N, D]."""
        half = len(self.blocks) // 2
        given: list[Tensor] = []
        for i, block in enumerate(self.blocks):
            if i > half:  # the block opposite is the latest whose output was not used yet
                tokens = self.skips[i - half - 1](torch.cat([tokens, given.pop()], dim=-1))
            if self.recompute and torch.is_grad_enabled():
                # Nothing in a block is random, so there is no generator to restore.
                tokens = checkpoint(block, tokens, use_reentrant=False, preserve_rng_state=False)
            else:
                tokens = block(tokens)
            if i < half:
                given.append(tokens)
        return tokens

    def _picture(self, patches: Tensor) -> Tensor:
        """Assemble patches [B, L, p p C], row by row, into images [B, C, H, W]."""
        p, size, channels = self.cfg.patch_size, self.cfg.image_size, self.cfg.channels
        split = patches.reshape(-1, size // p, size // p, p, p, channels)
        return split.permute(0, 5, 1, 3, 2, 4).reshape(-1, channels, size, size)


def time_embedding(t: Tensor, width: int) -> Tensor:
    """cos | sin of ``t`` [B] or [] at ``width / 2`` frequencies, 1 to almost 1e-4, [..., width].

    In float64: the angles reach 1,500 radians, where float32 has only four decimals left.
    """
    k = torch.arange(width // 2, dtype=torch.float64, device=t.device)
    angles = t.double()[..., None] * torch.exp(-math.log(1e4) * k / (width // 2))
    return torch.cat([angles.cos(), angles.sin()], dim=-1)
