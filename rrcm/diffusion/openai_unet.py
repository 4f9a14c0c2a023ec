"""Imports UNet weights released with improved-diffusion and guided-diffusion, from untrusted files.

These are the repositories of Nichol & Dhariwal (2021), arXiv:2102.09672, and of Dhariwal & Nichol
(2021), arXiv:2105.05233. A file is a PyTorch pickle of a state dict. Names and shapes of its
tensors determine the network, except for its attention heads and the images it was trained on. The
imported network computes the same function; its tensors have the names of
rrcm/diffusion/networks/unet.py. See docs/importing.md.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rrcm.core.errors import CheckpointError, ConfigError
from rrcm.diffusion.networks import unet
from rrcm.models import state_dict

GROUPS = 32  # groups of every GroupNorm in both repositories
BLOCK = {  # parts of a residual block: their name -> ours
    ".in_layers.0": ".norm1",
    ".in_layers.2": ".conv1",
    ".emb_layers.1": ".time_emb_proj",
    ".out_layers.0": ".norm2",
    ".out_layers.3": ".conv2",
    ".skip_connection": ".conv_shortcut",  # where the number of channels changes
}
ATTENTION = {".norm": ".group_norm", ".qkv": ".to_", ".proj_out": ".to_out.0"}
ALONE = {"": ""}  # a layer without parts
QKV = ("q", "k", "v")
CONVOLUTIONS = (".qkv.weight", ".proj_out.weight")
RISE = re.compile(r"output_blocks\.(\d+)\.[12]\.(conv\.weight|in_layers\.0\.weight)")
OUTPUT = re.compile(r"output_blocks\.(\d+)\.")


def read(
    path: Path, *, image_size: int, heads: int | None, head_channels: int | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The UNet in ``path``: tensors, float32, named as those of `unet.Network`, and its shape.

    The shape is a mapping for ``models.<name>`` of params.yaml. Each tensor is checked by name,
    shape, type and value.

    Guarantee: no code in the file is executed (``weights_only``). Tensors may be memory-mapped from
    the file, which must not change while they are used.

    Args:
        path: A .pt file written by improved-diffusion or guided-diffusion.
        image_size: Side of the images that the network was trained on, in pixels.
        heads: Number of attention heads, or None.
        head_channels: Channels per attention head; needed if ``heads`` is None.

    Raises:
        CheckpointError: The file is not such a checkpoint, or has another network; names the
            difference.
        ConfigError: Not exactly one of ``heads`` and ``head_channels`` is given.
    """
    hint = "the weights are in a file such as ema_0.9999_500000.pt"
    tensors = state_dict.find(path, (), hint=hint).tensors
    if "label_emb.weight" in tensors:
        raise CheckpointError(
            f"{path}: label_emb.weight: this UNet is told the class of what it denoises, which is "
            "what a classifier is to find out; import one that is not class-conditional"
        )
    shape = _shape(path, tensors, image_size=image_size)
    shape["head_channels"] = _head_channels(path, shape, heads=heads, head_channels=head_channels)
    try:
        cfg = unet.Config(**shape)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from None
    state_dict.check(path, tensors, wanted(cfg))
    found: dict[str, Tensor] = {}
    for name, into in _names(cfg):
        if name in tensors:
            found |= zip(into, _parts(name, tensors[name], cfg.head_channels), strict=True)
    return state_dict.widen(found), asdict(cfg)


def wanted(cfg: unet.Config) -> dict[str, list[int]]:
    """Names and shapes of all tensors that a checkpoint file of this network has.

    The linear layers of our attention are convolutions of width 1 along the pixels in theirs, and
    a single one computes queries, keys and values.
    """
    with torch.device("meta"):
        ours = {name: [*t.shape] for name, t in unet.Network(cfg).state_dict().items()}
    shapes = {}
    for name, into in _names(cfg):
        if into[0] not in ours:  # blocks that keep the number of channels have no skip_connection
            continue
        rows, *rest = ours[into[0]]
        last = [1] if name.endswith(CONVOLUTIONS) else []
        shapes[name] = [len(into) * rows, *rest, *last]
    return shapes


def _shape(path: Path, tensors: dict[str, Tensor], *, image_size: int) -> dict[str, Any]:
    """The shape without ``head_channels``, inferred from the output blocks and a few tensors.

    Every level has the same number of output blocks; in all levels but one, the last of them
    doubles the resolution.
    """
    rises = {match[1]: match[2] for name in tensors if (match := RISE.fullmatch(name))}
    outputs = {match[1] for name in tensors if (match := OUTPUT.match(name))}
    levels = len(rises) + 1
    blocks, rest = len(outputs) // levels - 1, len(outputs) % levels
    width = _side(path, tensors, "time_embed.0", axis=1)
    channels = _side(path, tensors, "input_blocks.0.0", axis=1)
    out_channels = _side(path, tensors, "out.2", axis=0)
    if rest or blocks < 1:
        raise CheckpointError(
            f"{path}: {len(outputs)} output_blocks, of which {len(rises)} double the image; every "
            "level of such a UNet has the same number of them, two or more"
        )
    if out_channels not in (channels, 2 * channels):
        raise CheckpointError(
            f"{path}: out.2.weight: {out_channels} channels come out and {channels} go in; a "
            "UNet gives as many, or with a learned variance twice as many"
        )
    embedding_name = "input_blocks.1.0.emb_layers.1"
    if _side(path, tensors, embedding_name, axis=0) == width:
        raise CheckpointError(
            f"{path}: {embedding_name}.weight: the time shifts the channels of blocks, and does "
            "not scale them; such a UNet is not read"
        )
    firsts = [1 + level * (blocks + 1) for level in range(levels)]  # input block of each level
    kernels = [f"input_blocks.{first}.0.out_layers.3" for first in firsts]
    return {
        "channels": channels,
        "image_size": image_size,
        "width": width,
        "mults": [_side(path, tensors, kernel, axis=0) // width for kernel in kernels],
        "blocks": blocks,
        "attention": [
            image_size >> level
            for level, first in enumerate(firsts)
            if f"input_blocks.{first}.1.qkv.weight" in tensors
        ],
        "groups": GROUPS,
        "dropout": 0.0,  # not stored in the file, and used in training only
        "resample": "residual" if "in_layers.0.weight" in rises.values() else "conv",
        "learned_variance": out_channels != channels,
    }


def _side(path: Path, tensors: dict[str, Tensor], layer: str, *, axis: int) -> int:
    """Number of input (``axis`` 1) or output (0) channels of a layer."""
    name = f"{layer}.weight"
    if name not in tensors:
        raise CheckpointError(
            f"{path}: {name} is missing, so this is no UNet of improved- or guided-diffusion; the "
            f"first name is {next(iter(tensors))!r}"
        )
    if tensors[name].ndim < 2 or 0 in tensors[name].shape:
        raise CheckpointError(f"{path}: {name} is {[*tensors[name].shape]}, no weight of a layer")
    return tensors[name].shape[axis]


def _head_channels(
    path: Path, shape: dict[str, Any], *, heads: int | None, head_channels: int | None
) -> int:
    """Channels per attention head, which must be the same in all attention layers."""
    if (heads is None) == (head_channels is None):
        raise ConfigError(
            f"--heads, --head-channels: {path} does not say how its attention is divided; give one "
            "of both: improved-diffusion counts heads, guided-diffusion the channels of one"
        )
    if head_channels is not None:
        return head_channels
    levels = enumerate(shape["mults"])
    mults = [m for level, m in levels if shape["image_size"] >> level in shape["attention"]]
    channels = sorted({shape["width"] * mult for mult in [*mults, shape["mults"][-1]]})
    assert heads is not None  # by the first check
    if heads < 1 or len(channels) > 1 or channels[0] % heads:
        raise CheckpointError(
            f"{path}: --heads {heads}: attention is over {' and '.join(map(str, channels))} "
            "channels, and all heads must have as many, in whole numbers"
        )
    return channels[0] // heads


def _modules(cfg: unet.Config) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Name of each of their modules, the name of our equivalent, and the names of their parts.

    Theirs are numbered across all levels: ``input_blocks`` are the first convolution, then for each
    level its blocks and its downsampling. ``output_blocks`` go back up, with one more block per
    level, the last of which ends in the upsampling. Ours are numbered within each level.
    """
    yield "time_embed.0", "time_embedding.linear_1", ALONE
    yield "time_embed.2", "time_embedding.linear_2", ALONE
    yield "input_blocks.0.0", "conv_in", ALONE
    yield "middle_block.0", "mid_block.resnets.0", BLOCK
    yield "middle_block.1", "mid_block.attentions.0", ATTENTION
    yield "middle_block.2", "mid_block.resnets.1", BLOCK
    yield "out.0", "conv_norm_out", ALONE
    yield "out.2", "conv_out", ALONE
    last, each = len(cfg.mults) - 1, cfg.blocks + 1
    conv = cfg.resample == "conv"
    op, layer, change = (".op", ".conv", ALONE) if conv else ("", "", BLOCK)
    for level in range(last + 1):
        seen = cfg.image_size >> level in cfg.attention
        down, first = f"down_blocks.{level}", 1 + level * each
        up, back = f"up_blocks.{last - level}", (last - level) * each
        blocks = [(f"input_blocks.{first + i}", down, i) for i in range(cfg.blocks)]
        blocks += [(f"output_blocks.{back + i}", up, i) for i in range(each)]
        for theirs, ours, i in blocks:
            yield f"{theirs}.0", f"{ours}.resnets.{i}", BLOCK
            if seen:
                yield f"{theirs}.1", f"{ours}.attentions.{i}", ATTENTION
        if level < last:
            end = f"input_blocks.{first + cfg.blocks}.0"
            yield f"{end}{op}", f"{down}.downsamplers.0{layer}", change
        if level > 0:
            end = f"output_blocks.{back + cfg.blocks}.{1 + seen}"
            yield f"{end}{layer}", f"{up}.upsamplers.0{layer}", change


def _names(cfg: unet.Config) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Name of each tensor that a file may have, and the one or three names of ours it becomes."""
    for theirs, ours, parts in _modules(cfg):
        for part, name in parts.items():
            into = [name + x for x in QKV] if part == ".qkv" else [name]
            for kind in ("weight", "bias"):
                yield f"{theirs}{part}.{kind}", tuple(f"unet.{ours}{n}.{kind}" for n in into)


def _parts(name: str, tensor: Tensor, head_channels: int) -> tuple[Tensor, ...]:
    """Convert a tensor of theirs to ours: to one, or to those of queries, keys and values.

    Theirs begins with the queries, keys and values of the first head, followed by those of the
    second; ours are separate tensors for the queries, the keys and the values of all heads.
    """
    if name.endswith(CONVOLUTIONS):
        tensor = tensor.squeeze(-1)
    if ".qkv." not in name:
        return (tensor,)
    parts = tensor.unflatten(0, (-1, 3, head_channels)).unbind(dim=1)
    return tuple(part.flatten(0, 1) for part in parts)
