"""The rRCM vision transformer for inference: constants folded into its linear layers, in float64.

At one sigma, c_in, the time token, normalisation, positions and the cls token are constants of the
patch embedding. Affine parameters of LayerNorm and the attention's scale become part of the next
linear layer. The last block computes the cls token only, which is all that the head reads, and
needs no keys or values for it. Exact algebra, up to rounding (docs/theory.md, eq. 9 and 10).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rrcm.models.networks import vit
from rrcm.models.trained.base.classifier import Classifier
from rrcm.noise import units


@torch.no_grad()
def fold(network: Classifier) -> "Folded":
    """The inference form of ``network``: equal up to rounding, and in float64 until it is cast."""
    return Folded(network).eval().requires_grad_(False)


class Folded(nn.Module):
    """(noisy pixels [B, C, H, W], sigma []) -> scores [B, K], at any sigma."""

    kernel: Tensor  # [P, D]
    black: Tensor  # [D]
    start: Tensor  # [N, D]
    grid: Tensor

    def __init__(self, network: Classifier) -> None:
        super().__init__()
        encoder: Any = network.encoder
        projection = encoder.patch_embed.proj
        weight = projection.weight.double().flatten(1).T  # [P, D]
        black, white = units.to_model_space(torch.tensor([0.0, 1.0])).tolist()
        # Part of each token that depends on neither pixels nor sigma.
        start = encoder.pos_embed[0].double().clone()
        start[0] += encoder.cls_token[0, 0]
        start[2:] += projection.bias
        self.register_buffer("kernel", (white - black) * weight)
        self.register_buffer("black", black * weight.sum(dim=0))  # [D]; embedding of a black patch
        self.register_buffer("start", start)
        self.register_buffer("grid", network.grid.double())
        self.trunk = Trunk(network)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Scores [B, K]."""
        kernel, start = self.constants(sigma)
        return self.trunk(x, kernel.to(x.dtype), start.to(x.dtype))

    def constants(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """``kernel`` [P, D] and ``start`` [N, D]: a patch x becomes x @ kernel + start."""
        if len(self.grid):
            sigma = units.to_sigma(self.grid[(self.grid - units.to_time(sigma)).abs().argmin()])
        t = units.to_time(sigma.double())
        c_in = torch.rsqrt(t**2 + vit.SIGMA_DATA**2)
        time = vit.time_embedding(t[None], len(self.black))  # [1, D]
        patches = (c_in * self.black).expand(len(self.start) - 2, -1)
        return c_in * self.kernel, self.start + torch.cat([0 * time, time, patches])

    def fix(self, sigma: float) -> "FoldedAtSigma":
        """The network at one ``sigma``, with its constants computed once; shares the trunk."""
        return FoldedAtSigma(self, sigma)


class FoldedAtSigma(nn.Module):
    """Noisy pixels [B, C, H, W] -> scores [B, K], at one sigma.

    Unlike a `classifier.AtSigma` it stores the constants of that sigma, rounded from float64.
    """

    kernel: Tensor  # [P, D]
    start: Tensor  # [N, D]

    def __init__(self, folded: Folded, sigma: float) -> None:
        super().__init__()
        kernel, start = folded.constants(torch.tensor(sigma, dtype=torch.float64))
        self.register_buffer("kernel", kernel)
        self.register_buffer("start", start)
        self.trunk = folded.trunk

    def forward(self, x: Tensor) -> Tensor:
        """Scores [B, K], computed in the precision that this module was cast to."""
        return self.trunk(x.to(self.kernel.dtype), self.kernel, self.start)


class Trunk(nn.Module):
    """The layers that do not depend on sigma; tokens are the rows of one matrix, [B * N, D]."""

    def __init__(self, network: Classifier) -> None:
        super().__init__()
        encoder: Any = network.encoder
        *blocks, last = encoder.blocks
        self.patch_size = encoder.patch_embed.patch_size[0]
        self.blocks = nn.ModuleList(Block(block) for block in blocks)
        self.last = LastBlock(last)
        normed = isinstance(encoder.norm, nn.LayerNorm)  # else there is no norm before the head
        self.norm = _norm(encoder.norm) if normed else nn.Identity()
        head = network.head.weight.double(), network.head.bias.double()
        self.head = _linear(*_after(encoder.norm, network.head) if normed else head)

    def forward(self, x: Tensor, kernel: Tensor, start: Tensor) -> Tensor:
        """Scores [B, K] of noisy pixels ``x`` [B, C, H, W]."""
        batch, channels, height, width = x.shape
        p = self.patch_size
        x = x.reshape(batch, channels, height // p, p, width // p, p).permute(0, 2, 4, 1, 3, 5)
        x = x.reshape(batch, -1, len(kernel))  # [B, L, P]
        # Two empty patches for cls and time: padding patches copies less than padding tokens.
        h = (F.pad(x, (0, 0, 2, 0)) @ kernel + start).flatten(0, 1)  # [B * N, D]
        for block in self.blocks:
            h = block(h, len(start))
        return self.head(self.norm(self.last(h, len(start))))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.heads = block.attn.num_heads
        self.norm = _norm(block.norm1)
        self.qkv = _linear(*_qkv(block))
        self.project = _linear(block.attn.proj.weight.double(), block.attn.proj.bias.double())
        self.mlp = Mlp(block)

    def forward(self, h: Tensor, tokens: int) -> Tensor:
        """The residual stream [B * N, D] after this block."""
        qkv = self.qkv(self.norm(h)).view(-1, tokens, 3, self.heads, h.shape[1] // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()  # [B, heads, N, D / heads] each
        return self.mlp(h + self.project(attend(q, k, v).transpose(1, 2).reshape(h.shape)))


class LastBlock(nn.Module):
    r"""A pre-norm transformer block for the cls token alone, without keys or values.

    For a single query q, each head can attend to the normed tokens n_j themselves, since

    .. math:: q^\top (W_K n_j + b_K) = (W_K^\top q)^\top n_j + \mathrm{const}, \qquad
        \sum_j a_j (W_V n_j + b_V) = W_V \sum_j a_j n_j + b_V.

    Softmax is invariant to the constant, and the attention weights a sum to 1.
    """

    k: Tensor  # [heads, D / heads, D]
    v: Tensor  # [heads, D, D / heads]

    def __init__(self, block: Any) -> None:
        super().__init__()
        weight, bias = _qkv(block)
        project = block.attn.proj.weight.double()
        (q, k, v), (b_q, _, b_v) = weight.chunk(3), bias.chunk(3)
        self.heads = block.attn.num_heads
        self.norm = _norm(block.norm1)
        self.q = _linear(q, b_q)
        self.register_buffer("k", k.unflatten(0, (self.heads, -1)))  # [heads, D / heads, D]
        self.register_buffer("v", v.unflatten(0, (self.heads, -1)).mT)  # [heads, D, D / heads]
        self.project = _linear(project, block.attn.proj.bias + project @ b_v)
        self.mlp = Mlp(block)

    def forward(self, h: Tensor, tokens: int) -> Tensor:
        """The cls token [B, D] after this block."""
        h = h.view(-1, tokens, h.shape[1])
        n = self.norm(h)  # [B, N, D]
        q = self.q(n[:, 0]).unflatten(1, (self.heads, -1)).transpose(0, 1)  # [heads, B, D / heads]
        pooled = attend((q @ self.k).transpose(0, 1), n, n)  # [B, heads, D]
        attended = (pooled.transpose(0, 1) @ self.v).transpose(0, 1).flatten(1)
        return self.mlp(h[:, 0] + self.project(attended))


class Mlp(nn.Module):
    """The MLP half of a block, with its norm."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.norm = _norm(block.norm2)
        self.fc1 = _linear(*_after(block.norm2, block.mlp.fc1))
        self.fc2 = _linear(block.mlp.fc2.weight.double(), block.mlp.fc2.bias.double())

    def forward(self, h: Tensor) -> Tensor:
        """The residual stream after the MLP."""
        return h + self.fc2(F.gelu(self.fc1(self.norm(h))))


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T) v over the last two dimensions; the softmax is in float32 at least."""
    if q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, scale=1.0)
    wide = torch.promote_types(q.dtype, torch.float32)
    # With so few tokens, faster on a CPU than the fused kernel in bfloat16.
    return (q @ k.mT).softmax(dim=-1, dtype=wide).to(v.dtype) @ v


def _qkv(block: Any) -> tuple[Tensor, Tensor]:
    """Weight [3D, D] and bias [3D] of q, k and v for normed tokens, with the scale in q."""
    weight, bias = _after(block.norm1, block.attn.qkv)
    width = weight.shape[1]
    scale = torch.ones(3 * width, dtype=torch.float64)
    scale[:width] = block.attn.scale
    return scale[:, None] * weight, scale * bias


def _after(norm: nn.LayerNorm, layer: nn.Linear) -> tuple[Tensor, Tensor]:
    """Weight and bias of ``layer`` with the affine part of ``norm`` folded in."""
    weight = layer.weight.double()
    bias = weight @ norm.bias.double()
    return weight * norm.weight.double(), bias if layer.bias is None else bias + layer.bias


def _norm(norm: nn.LayerNorm) -> nn.LayerNorm:
    """``norm`` with an identity affine part, which is faster on a CPU than none."""
    return nn.LayerNorm(norm.normalized_shape, eps=norm.eps, dtype=torch.float64)


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, dtype=torch.float64)
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)
    return layer
