"""Recognises untrusted checkpoints of the reference implementation of rRCM (Lei et al., 2025).

Its files are PyTorch pickles of a state dict: of an encoder with its projector, or of a fine-tuned
classifier, either possibly under the prefix of a distributed wrapper. Tensor shapes determine the
network except for the number of attention heads and whether the last LayerNorm is used.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rrcm.core.errors import CheckpointError, ConfigError
from rrcm.models import state_dict
from rrcm.models.networks import vit

WRAPPER, BASE, HEAD, PROJECTOR = "module.", "base_model.", "linear_head.", "projection_head."
HINTS = {"norm.weight": "if the head reads no LayerNorm, --skip-norm"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """Contents of a file: float32 ``tensors`` with the names of a `Classifier` or `Encoder`.

    ``classes`` is a classifier's number of classes, None for an encoder. ``shape`` is a mapping for
    ``models.<name>`` of params.yaml.
    """

    tensors: dict[str, Tensor]
    shape: dict[str, Any]
    classes: int | None
    final_norm: bool
    architecture: str = "vit"


def recognised(
    path: Path, tensors: dict[str, Tensor], *, heads: int | None, final_norm: bool
) -> Checkpoint:
    """The encoder or classifier of ``tensors``, each checked by name, shape, type and value.

    ``tensors`` of ``path`` have the names of the reference implementation. Without ``heads``, the
    number is that of the size of `vit.SIZES` with the file's width and depth. ``final_norm`` is
    whether a classifier's head reads the output of the last LayerNorm; an encoder keeps it anyway.

    Raises:
        CheckpointError: It is no such checkpoint, or of another network; names what differs.
    """
    if all(name.startswith(WRAPPER) for name in tensors):
        tensors = {name.removeprefix(WRAPPER): t for name, t in tensors.items()}
    if all(name.startswith((BASE, HEAD)) for name in tensors):  # the head's names lack the base's
        tensors = {name.removeprefix(BASE): t for name, t in tensors.items()}
    head = {name: tensors.pop(name) for name in [*tensors] if name.startswith(HEAD)}
    beside = [name for name in tensors if name.startswith(PROJECTOR)]
    projector = {name.removeprefix(PROJECTOR): tensors.pop(name) for name in beside}
    shape = _shape(path, tensors, projector, heads=heads)
    kept = final_norm or not head
    if not kept:  # there, but not used
        tensors = {name: t for name, t in tensors.items() if not name.startswith("norm.")}
    with torch.device("meta"):
        encoder = vit.Encoder(vit.Config(**shape), final_norm=kept)
    wanted = {name: [*t.shape] for name, t in encoder.state_dict().items()}
    state_dict.check(path, tensors, wanted, hints=HINTS)
    classes = None
    if head:
        classes, width = _rows(path, head, f"{HEAD}weight"), wanted["cls_token"][-1]
        state_dict.check(path, head, {f"{HEAD}weight": [classes, width], f"{HEAD}bias": [classes]})
        tensors = {f"encoder.{name}": t for name, t in tensors.items()}
        tensors |= {f"head.{name.removeprefix(HEAD)}": t for name, t in head.items()}
    return Checkpoint(
        tensors=state_dict.widen(tensors), shape=shape, classes=classes, final_norm=kept
    )


def _shape(
    path: Path, tensors: dict[str, Tensor], projector: dict[str, Tensor], *, heads: int | None
) -> dict[str, Any]:
    """``models.<name>`` of params.yaml, from the shapes of the embeddings and the blocks."""
    kernel, positions = "patch_embed.proj.weight", "pos_embed"
    for name, axes in ((kernel, 4), (positions, 3)):
        if name not in tensors:
            raise CheckpointError(
                f"{path}: {name} is missing, so this is no checkpoint of rRCM; the first name is "
                f"{next(iter(tensors), 'none')!r}"
            )
        if tensors[name].ndim != axes or 0 in tensors[name].shape:
            raise CheckpointError(f"{path}: {name} is {[*tensors[name].shape]}, not {axes} axes")
    width, channels, patch, _ = tensors[kernel].shape
    patches = tensors[positions].shape[1] - 2
    side = math.isqrt(max(patches, 0))
    if side < 1 or side**2 != patches:
        raise CheckpointError(
            f"{path}: {positions} has {patches + 2} tokens: cls, time and {patches} patches, which "
            "are no square image"
        )
    depth = len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
    shape: dict[str, Any] = {
        "size": _size(path, width, depth, heads=heads),
        "image_size": side * patch,
        "channels": channels,
        "patch_size": patch,
        "position_std": 0.02,
        "init": "xavier",
        "projector_width": _rows(path, projector, "0.weight") if projector else 2048,
        "projector_dim": _rows(path, projector, "6.weight") if projector else 256,
    }
    try:
        vit.Config(**shape)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from None
    return shape


def _size(path: Path, width: int, depth: int, *, heads: int | None) -> str:
    """The name of the size if it has one, else WIDTHxDEPTHxHEADS."""
    for name, size in vit.SIZES.items():
        if size[:2] == (width, depth) and heads in (None, size[2]):
            return name
    if heads is None:
        raise CheckpointError(
            f"{path}: width {width} and {depth} blocks; shapes do not say how many heads they "
            "have: give --heads"
        )
    return f"{width}x{depth}x{heads}"


def _rows(path: Path, tensors: dict[str, Tensor], name: str) -> int:
    """Length of the first axis of a matrix."""
    tensor = tensors.get(name)
    if tensor is None or tensor.ndim != 2 or 0 in tensor.shape:
        found = "missing" if tensor is None else f"{[*tensor.shape]}, not a matrix"
        raise CheckpointError(f"{path}: {name} is {found}")
    return tensor.shape[0]
