"""Checkpoints: safetensors files, written atomically, with a digest that reveals damage.

No pickle is ever loaded.
"""

import json
import os
import re
from hashlib import sha256
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from rrcm.core import formats
from rrcm.core.errors import CheckpointError, one_line
from rrcm.core.files import atomic, require_file

ABOUT = "rrcm"  # the only metadata entry, because safetensors writes several in random order
LARGEST = 2**40  # bytes of a file


def save(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write named tensors and text ``metadata``; the same input gives the same bytes."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    text = metadata or {}
    with atomic(path) as part:
        about = {"sha256": digest(tensors, text), "text": text}
        try:
            save_file(tensors, part, {ABOUT: json.dumps(about, sort_keys=True)})
        except SafetensorError as error:
            number = re.search(r"os error (\d+)", str(error))  # of the operating system
            if number is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from None


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and text metadata of a file that `save` wrote.

    Guarantee: they are as saved, verified by the SHA-256 in the file.

    Raises:
        CheckpointError: The file is missing, damaged, or not from `save`.
    """
    tensors, metadata = read(path)
    try:
        about = json.loads(metadata[ABOUT])
        text: dict[str, str] = about["text"]
        if about["sha256"] != digest(tensors, text):
            raise ValueError
    except (ValueError, TypeError, KeyError):
        raise CheckpointError(
            f"{path}: damaged, or not written here: its digest does not match; make it anew with "
            "`rrcm repro` or `rrcm import`"
        ) from None
    return tensors, text


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and metadata of any safetensors file, without a check of its digest.

    Raises:
        CheckpointError: The file is missing, or cannot be read.
    """
    require_file(path, CheckpointError, most=LARGEST)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}
    except SafetensorError as error:
        damage = f"damaged ({one_line(error)})"
        why = formats.told(path, damage, own=("safetensors",))
        raise CheckpointError(f"{path}: {why}") from None


def digest(tensors: dict[str, Tensor], about: object) -> str:
    """SHA-256 of named tensors, in any order, and of ``about`` as JSON."""
    content = sha256(json.dumps(about, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        content.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return content.hexdigest()


def restore(module: nn.Module, tensors: dict[str, Tensor], *, source: str) -> None:
    """Copy ``tensors`` into ``module``; all names and shapes must agree.

    Raises:
        CheckpointError: A name or shape differs; the message names the first one.
    """
    wanted = module.state_dict()
    for name in [*wanted, *tensors]:
        here, there = wanted.get(name), tensors.get(name)
        if here is None or there is None or here.shape != there.shape:
            raise CheckpointError(
                f"{source}: a checkpoint of another architecture: {name} is "
                f"{_shape(there)} in the file, {_shape(here)} in the model of params.yaml"
            )
    module.load_state_dict(tensors)


def _shape(tensor: Tensor | None) -> str:
    return "absent" if tensor is None else str([*tensor.shape])
