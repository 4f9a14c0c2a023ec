"""State dicts of UNets, as improved- and guided-diffusion name and shape them."""

import math
from dataclasses import dataclass
from functools import cache

import torch

from rrcm.diffusion import openai_unet
from rrcm.diffusion.networks import unet


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


def config(form):
    """The same network as one of ours."""
    return unet.Config(
        channels=form.channels,
        image_size=form.size,
        width=form.width,
        mults=[*form.mults],
        blocks=form.blocks,
        attention=[*form.attention],
        head_channels=form.head_channels or form.width * form.mults[-1] // form.heads,
        groups=32,
        dropout=0.0,
        resample="residual" if form.residual else "conv",
        learned_variance=form.behind != form.channels,
    )


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

    return {name: draw(name, shape) for name, shape in openai_unet.wanted(config(form)).items()}
