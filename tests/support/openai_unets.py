"""State dicts of UNets, as improved- and guided-diffusion name and shape them."""

import math
from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True)
class Form:
    """A UNet as the two repositories describe one; ``heads`` is a number or None, as theirs."""

    size: int
    channels: int
    behind: int
    width: int
    mults: tuple[int, ...]
    blocks: int
    attention: tuple[int, ...]
    heads: int | None
    head_channels: int | None
    residual: bool

    def count(self, channels):
        return self.heads or channels // self.head_channels


IMPROVED = Form(8, 3, 6, 32, (1, 2, 2), 2, (4,), 4, None, False)
GUIDED = Form(8, 1, 1, 32, (1, 1, 2), 1, (4, 2), None, 32, True)  # of 1 head and of 2


def shapes(form):
    """The names and shapes of a state dict, by building the network as it is described."""
    found, told = {}, 4 * form.width

    def layer(name, *shape):
        found[f"{name}.weight"], found[f"{name}.bias"] = shape, shape[:1]

    def block(name, before, after):
        layer(f"{name}.in_layers.0", before)
        layer(f"{name}.in_layers.2", after, before, 3, 3)
        layer(f"{name}.emb_layers.1", 2 * after, told)
        layer(f"{name}.out_layers.0", after)
        layer(f"{name}.out_layers.3", after, after, 3, 3)
        if before != after:
            layer(f"{name}.skip_connection", after, before, 1, 1)

    def attention(name, c):
        layer(f"{name}.norm", c)
        layer(f"{name}.qkv", 3 * c, c, 1)
        layer(f"{name}.proj_out", c, c, 1)

    def resample(name, c, word):
        block(name, c, c) if form.residual else layer(f"{name}.{word}", c, c, 3, 3)

    layer("time_embed.0", told, form.width)
    layer("time_embed.2", told, told)
    layer("input_blocks.0.0", form.width, form.channels, 3, 3)
    kept, c, size = [form.width], form.width, form.size
    for mult in form.mults:
        if len(kept) > 1:
            resample(f"input_blocks.{len(kept)}.0", c, "op")
            kept.append(c)
            size //= 2
        for _ in range(form.blocks):
            block(f"input_blocks.{len(kept)}.0", c, mult * form.width)
            c = mult * form.width
            if size in form.attention:
                attention(f"input_blocks.{len(kept)}.1", c)
            kept.append(c)
    block("middle_block.0", c, c)
    attention("middle_block.1", c)
    block("middle_block.2", c, c)
    index = 0
    for mult in reversed(form.mults):
        for i in range(form.blocks + 1):
            block(f"output_blocks.{index}.0", c + kept.pop(), mult * form.width)
            c, place = mult * form.width, 1
            if size in form.attention:
                attention(f"output_blocks.{index}.1", c)
                place = 2
            if i == form.blocks and kept:
                resample(f"output_blocks.{index}.{place}", c, "conv")
                size *= 2
            index += 1
    layer("out.0", c)
    layer("out.2", form.behind, c, 3, 3)
    return found


def drawn(form):
    """A state dict of random numbers."""
    return dict(_drawn(form))


@cache
def _drawn(form):
    generator = torch.Generator().manual_seed(0)

    def draw(name, shape):
        scale = math.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.3
        return (len(shape) == 1 and "weight" in name) + scale * torch.randn(
            shape, generator=generator
        )

    return {name: draw(name, shape) for name, shape in shapes(form).items()}
