"""Tensors on disk: safetensors, whole or absent; never a pickle.

Beside its tensors each file has a digest of them, so that a damaged one is none of another content.
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

from rrcm.errors import CheckpointError, one_line
from rrcm.files import atomic, require_file

ABOUT = "rrcm"  # the only entry of the metadata: safetensors writes several in a random order
MOST = 2**40  # bytes of a file, which is mapped into memory


def save(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write named tensors, and text beside them, to ``path``; the same input, the same bytes."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    text = metadata or {}
    with atomic(path) as part:
        about = {"sha256": digest(tensors, text), "text": text}
        try:
            save_file(tensors, part, {ABOUT: json.dumps(about, sort_keys=True)})
        except SafetensorError as error:
            number = re.search(r"os error (\d+)", str(error))  # what the file system said
            if number is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from None


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the text of ``path``.

    Guarantee: they are those that `save` was given.

    Raises:
        CheckpointError: The file is missing or damaged, or an older version wrote it.
    """
    tensors, metadata = read(path)
    if ABOUT not in metadata:
        raise CheckpointError(
            f"{path}: no digest in it, so that damage would not show: an older version wrote it; "
            "make it anew with `dvc repro`, or `rrcm import`"
        )
    try:
        about = json.loads(metadata[ABOUT])
        text: dict[str, str] = about["text"]
        whole = about["sha256"] == digest(tensors, text)
    except (ValueError, TypeError, KeyError):
        whole = False
    if not whole:
        raise CheckpointError(
            f"{path}: damaged: not what was saved; `dvc checkout --force` or `dvc repro` brings it "
            "back"
        )
    return tensors, text


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file that anybody wrote, whole or not.

    Raises:
        CheckpointError: The file is missing, or cannot be read.
    """
    require_file(path, CheckpointError, most=MOST)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}
    except SafetensorError as error:
        raise CheckpointError(f"{path}: damaged ({one_line(error)})") from None


def digest(tensors: dict[str, Tensor], about: object) -> str:
    """SHA-256 of named tensors, whatever their order, and of what JSON has of ``about``."""
    found = sha256(json.dumps(about, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()


def restore(module: nn.Module, tensors: dict[str, Tensor], *, source: str) -> None:
    """Copy ``tensors`` into ``module``; every name and shape must agree.

    Raises:
        CheckpointError: The tensors are of another architecture; names the first that differs.
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
