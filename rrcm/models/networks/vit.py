"""The rRCM vision transformer (Lei et al., 2025): a ViT conditioned on the noise level.

Tokens are [cls, time, patches]. The time token is the raw sinusoidal embedding of 250 ln t, with no
parameters of its own. Attribute names and shapes are those of the reference implementation's
checkpoints. Normalisation, the input scale c_in and t = 2 sigma are applied here (docs/theory.md,
eq. 9 and 10), so that all other code uses pixels in [0, 1].
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from timm.layers import PatchEmbed, trunc_normal_
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rrcm.core.ranges import SIDE, dimensions, positive, require
from rrcm.models.trained.base.network import Shape
from rrcm.noise import units

SIZES = {  # name: (width, depth, heads); Lei et al., table 6, and one for 8 x 8 digits
    "tiny": (64, 4, 4),
    "s": (512, 6, 8),
    "b": (768, 12, 12),
    "b_deep": (768, 24, 24),
}
SIGMA_DATA = 0.5  # standard deviation of natural images in model space (Karras et al., 2022)


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Shape):
    """Shape of the network: its size, its input, and the projector used in pre-training.

    ``size`` is a name (`SIZES`) or WIDTHxDEPTHxHEADS, such as ``48x2x4``. ``position_std`` is the
    initial standard deviation of learned positions. The paper's 0.02 suits large patches and many
    steps; on digits, positions must matter from step 1. ``init`` is PyTorch's initialisation, or
    Xavier's as in MoCo-v3 (Chen et al., 2021, arXiv:2104.02057).
    """

    size: str
    patch_size: int
    position_std: float
    init: Literal["pytorch", "xavier"]

    def __post_init__(self) -> None:
        Shape.__post_init__(self)
        positive(self, "patch_size", most=SIDE)
        positive(self, "position_std")
        dimensions(self.size, SIZES)  # refuses what is none
        require(
            self.image_size % self.patch_size == 0,
            f"patch_size: {self.patch_size} does not divide image_size {self.image_size}",
        )

    @property
    def width(self) -> int:
        """Dimension D of the representation."""
        return self.dimensions[0]

    @property
    def dimensions(self) -> tuple[int, int, int]:
        """Width, number of blocks, and attention heads in each."""
        return dimensions(self.size, SIZES)


class Encoder(nn.Module):
    """Maps noisy pixels and their noise level to a representation.

    With ``recompute``, activations inside a block are not stored but recomputed in the backward
    pass (gradient checkpointing): the same gradients, with less memory and more time.
    """

    supports_recompute: ClassVar[bool] = True
    head_init: ClassVar[str] = "uniform"
    recompute: bool = False
    # Patterns of parameter names, for layer decay; the others belong to the last layer.
    LAYERS: ClassVar[dict[str, str]] = {
        "stem": r"(?:cls_token|pos_embed|patch_embed)",
        "blocks": r"blocks\.(\d+)",
    }

    def __init__(self, cfg: Config, *, final_norm: bool = True) -> None:
        """Initialise by ``cfg.init``; without ``final_norm`` there is no LayerNorm at the end.

        The paper's CIFAR-10 classifiers read the cls token without it.
        """
        super().__init__()
        (width, depth, heads), norm = cfg.dimensions, partial(nn.LayerNorm, eps=1e-5)
        self.patch_embed = PatchEmbed(cfg.image_size, cfg.patch_size, cfg.channels, width)
        self.cls_token = nn.Parameter(trunc_normal_(torch.empty(1, 1, width), std=0.02))
        self.pos_embed = nn.Parameter(
            torch.randn(1, 2 + self.patch_embed.num_patches, width) * cfg.position_std
        )
        self.blocks = nn.ModuleList(
            # timm only calls norm_layer, but declares it as a class
            Block(width, heads, mlp_ratio=4, qkv_bias=False, norm_layer=norm)  # type: ignore[arg-type]
            for _ in range(depth)
        )
        self.norm = norm(width) if final_norm else nn.Identity()
        if cfg.init == "xavier":
            xavier(self)

    def forward(self, x: Tensor, sigma: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Representations [B, D] of ``x`` [B, C, H, W], noisy pixels, at ``sigma`` [B] or [].

        With ``hidden`` [B, H], the distinct positions of patches to leave out (row by row, from 0),
        the result is all remaining tokens [B, 2 + L - H, D]: cls, time, and the other patches in
        order. Hidden patches do not affect them; H may be 0.
        """
        batch = x.shape[0]  # not len(x), which would freeze the batch size of an export
        t = units.to_time(sigma).expand(batch)  # [B]
        c_in = torch.rsqrt(t**2 + SIGMA_DATA**2)
        patches = self.patch_embed(units.to_model_space(x) * c_in.view(-1, 1, 1, 1))  # [B, L, D]
        cls = self.cls_token.expand(batch, -1, -1)
        time = time_embedding(t, self.cls_token.shape[-1])[:, None]
        tokens = torch.cat([cls, time, patches], dim=1) + self.pos_embed  # [B, 2 + L, D]
        *blocks, block = self.blocks
        last: Callable[[Tensor], Tensor] = block
        if hidden is None:
            last = partial(cls_after, block)
        else:
            tokens = _without(tokens, 2 + hidden)
        for block in blocks:
            tokens = self._run(block, tokens)
        return self.norm(self._run(last, tokens))

    def _run(self, block: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
        if not (self.recompute and torch.is_grad_enabled()):
            return block(tokens)
        # A block is deterministic, so no random state has to be restored.
        return checkpoint(block, tokens, use_reentrant=False, preserve_rng_state=False)


def cls_after(block: Any, tokens: Tensor) -> Tensor:
    """Only the cls token [B, D] after timm's ``block``, applied to ``tokens`` [B, N, D].

    Other tokens are not used after the last block, so they serve only as keys and values there:
    they are not queries, projected, or sent through the MLP.
    """
    attention, width = block.attn, tokens.shape[-1]
    normed = block.norm1(tokens)
    weight_q, weight_kv = attention.qkv.weight.split([width, 2 * width])
    split = (attention.num_heads, width // attention.num_heads)
    q = F.linear(normed[:, :1], weight_q).unflatten(-1, split).transpose(1, 2)  # [B, heads, 1, .]
    kv = F.linear(normed, weight_kv).unflatten(-1, (2, *split))  # [B, N, 2, heads, .]
    k, v = (part.transpose(1, 2) for part in kv.unbind(2))  # [B, heads, N, .] each
    if attention.fused_attn:
        looked = F.scaled_dot_product_attention(q, k, v)
    else:
        looked = (q * attention.scale @ k.transpose(-2, -1)).softmax(dim=-1) @ v
    cls = tokens[:, 0] + attention.proj(looked[:, :, 0].flatten(1))  # [B, D]
    return cls + block.mlp(block.norm2(cls))


def _without(tokens: Tensor, places: Tensor) -> Tensor:
    """``tokens`` [B, N, D] without those at distinct ``places`` [B, H], in order [B, N - H, D]."""
    batch, count, width = tokens.shape
    out = torch.zeros(batch, count, dtype=torch.uint8, device=tokens.device).scatter(1, places, 1)
    kept = out.argsort(dim=1, stable=True)[:, : count - places.shape[1]]
    return tokens.gather(1, kept[:, :, None].expand(-1, -1, width))


class Predictor(nn.Module):
    """A narrow ViT that predicts the representations of hidden patches from the visible ones.

    That of I-JEPA, Assran et al. (2023), arXiv:2301.08243. A hidden patch is a mask token plus
    sines and cosines of its row and column: its position is an input, its pixels are not.
    """

    positions: Tensor  # [L, width]

    def __init__(self, cfg: Config, *, width: int, depth: int, heads: int) -> None:
        """For encoders of the shape ``cfg``; ``width`` is a multiple of 4 and of ``heads``.

        ``side`` is the number of patches in a row and in a column.
        """
        super().__init__()
        self.side = cfg.image_size // cfg.patch_size
        self.embed = nn.Linear(cfg.width, width)
        self.mask_token = nn.Parameter(trunc_normal_(torch.empty(width), std=0.02))
        self.blocks = nn.ModuleList(
            Block(width, heads, mlp_ratio=4, qkv_bias=True, norm_layer=nn.LayerNorm)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, cfg.width)
        self.register_buffer("positions", grid_embedding(self.side, width), persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, seen: Tensor, visible: Tensor, asked: Tensor) -> Tensor:
        """Predicted representations [B, T, P, D] of patches ``asked`` [B, T, P]: T blocks of P.

        ``seen`` [B, K, D] are the representations of the patches at ``visible`` [B, K]. A block is
        predicted from them only, not from other blocks.
        """
        blocks, size = asked.shape[1:]
        seen = self.embed(seen) + self.positions[visible]  # [B, K, W]
        seen = seen[:, None].expand(-1, blocks, -1, -1)
        tokens = torch.cat([seen, self.mask_token + self.positions[asked]], dim=2).flatten(0, 1)
        for block in self.blocks:
            tokens = block(tokens)  # [B T, K + P, W]
        return self.project(self.norm(tokens[:, -size:])).unflatten(0, (-1, blocks))


@torch.no_grad()
def xavier(encoder: Encoder) -> None:
    """Initialise as MoCo-v3 does, except positions, which are learned here and stay unchanged.

    Weights are uniform in ±sqrt(6 / (in + out)), where q, k and v count as three matrices; biases
    are 0, and the cls token is almost 0.
    """
    for module in encoder.blocks.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    block: Any
    for block in encoder.blocks:
        for matrix in block.attn.qkv.weight.chunk(3):
            nn.init.xavier_uniform_(matrix)
    projection = encoder.patch_embed.proj
    nn.init.xavier_uniform_(projection.weight.flatten(1))  # a view: patches are rows of pixels
    assert projection.bias is not None
    nn.init.zeros_(projection.bias)
    nn.init.normal_(encoder.cls_token, std=1e-6)


def time_embedding(t: Tensor, width: int) -> Tensor:
    """cos | sin of 250 ln t at ``width / 2`` frequencies, 1 to almost 1e-4, [B, width] (eq. 10).

    In float64: the angles reach 1,500 radians, where float32 has only four decimal places.
    """
    k = torch.arange(width // 2, dtype=torch.float64, device=t.device)
    frequencies = torch.exp(-math.log(1e4) * k / (width // 2))
    angles = 250 * torch.log(t.double())[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1).float()


def grid_embedding(side: int, width: int) -> Tensor:
    """sin | cos of the row, then of the column, of each of ``side`` x ``side`` patches, [L, width].

    Each at ``width / 4`` frequencies, 1 to almost 1e-4 (Vaswani et al., 2017, arXiv:1706.03762).
    """
    frequencies = 1e4 ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    angles = torch.arange(side)[:, None] * frequencies  # [side, width / 4]
    line = torch.cat([angles.sin(), angles.cos()], dim=1)  # [side, width / 2]
    rows, columns = line.repeat_interleave(side, dim=0), line.repeat(side, 1)
    return torch.cat([rows, columns], dim=1).float()
