"""State dicts in PyTorch pickles of somebody else, read and checked without trusting them."""

import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from rrcm.errors import CheckpointError
from rrcm.registry import suggest

EXACT = (torch.float32, torch.float16, torch.bfloat16)  # float32 holds every number of these
UNREADABLE = (  # what torch.load says of files that are something else, or not whole
    *(pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, TypeError),
    *(AttributeError, AssertionError, OverflowError, struct.error, OSError),
)


def load(path: Path, *, hint: str) -> dict[str, Tensor]:
    """The state dict in ``path``, mapped into memory where its format allows.

    Guarantee: nothing that the file says is executed (``weights_only``), and every tensor has its
    numbers in the file. ``hint`` says where else a state dict might be, if this is none.

    Raises:
        CheckpointError: The file is missing, damaged, or no mapping of names to tensors.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: not found")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PyTorch's about its own reading of odd files
            held = torch.load(
                path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
            )
    except UNREADABLE as error:
        # PyTorch's own words advise to execute the file; what it asked for is all that matters.
        asked = re.search(r"GLOBAL ([\w.]+)", str(error))
        why = (
            f"it calls {asked[1]}, and is not executed" if asked else "no PyTorch file, or damaged"
        )
        raise CheckpointError(f"{path}: {why}; a state dict of tensors is wanted") from None
    if not isinstance(held, dict) or not held:
        raise CheckpointError(
            f"{path}: expected a state dict, a mapping of names to tensors, got "
            f"{type(held).__name__}; {hint}"
        )
    for name, tensor in held.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise CheckpointError(
                f"{path}: expected a state dict, a mapping of names to tensors, but {name!r} is "
                f"a {type(tensor).__name__}"
            )
        if not _stored(tensor):
            raise CheckpointError(f"{path}: {name} is no plain tensor, its numbers in the file")
    return dict(held)


def _stored(tensor: Tensor) -> bool:
    """Whether the file has a number for each element: a short file cannot ask for much memory."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        return False
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


def check(
    path: Path,
    tensors: dict[str, Tensor],
    wanted: dict[str, list[int]],
    *,
    hints: Mapping[str, str] | None = None,
) -> None:
    """Refuse tensors that are not exactly the wanted ones, or not finite, exact numbers.

    Args:
        path: Where they are from, for messages.
        tensors: By name.
        wanted: The shape of each, by name.
        hints: By name, why a tensor may be missing.

    Raises:
        CheckpointError: Names the first tensor that is wrong.
    """
    for name in wanted | tensors:
        if name not in tensors:
            hint = f"; {hints[name]}" if hints and name in hints else ""
            raise CheckpointError(f"{path}: {name} is missing{hint}")
        if name not in wanted:
            hint = suggest(name, [*wanted])
            raise CheckpointError(f"{path}: {name} is not of this network.{hint}")
        tensor = tensors[name]
        if [*tensor.shape] != wanted[name]:
            raise CheckpointError(f"{path}: {name} is {[*tensor.shape]}, not {wanted[name]}")
        if tensor.dtype not in EXACT:
            raise CheckpointError(f"{path}: {name} is {tensor.dtype}, not float32 or shorter")
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{path}: {name} holds numbers that are not finite")


def widen(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same numbers as float32."""
    return {name: t.detach().float() for name, t in tensors.items()}
