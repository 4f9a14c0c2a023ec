"""Reads and checks state dicts from untrusted sources; no other module does."""

import pickle
import re
import struct
import threading
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rrcm.core import formats
from rrcm.core.errors import CheckpointError
from rrcm.core.files import require_file
from rrcm.core.registry import suggest
from rrcm.core.schema import shown
from rrcm.models.trained.base import checkpoint

EXACT = (torch.float32, torch.float16, torch.bfloat16)  # float32 holds every number of these
UNREADABLE = (  # exceptions of torch.load on other kinds of files, or truncated ones
    *(pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, TypeError),
    *(AttributeError, AssertionError, OverflowError, MemoryError, struct.error),
    zipfile.BadZipFile,
)
LONGEST = 100  # characters of a name in a message
DEEPEST = 4  # keys on the way to a state dict


class _Unread:
    """Stands for an object of a pickle that is no tensor, and does nothing with its ``state``."""

    __slots__ = ("state",)

    def __new__(cls, *_: object) -> "_Unread":
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        self.state = state


# Training programs save these beside the weights: options, the best accuracy. None of the real ones
# is called, so that nothing in them (an object array, a __setstate__ of a Namespace) is executed.
SKIPPED = (
    "argparse.Namespace",
    "numpy.dtype",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
)
_STAND_INS: list[Any] = [
    (type(name.rpartition(".")[2], (_Unread,), {"__slots__": ()}), name) for name in SKIPPED
]
_ALLOWING = threading.Lock()  # PyTorch's list of what is allowed is one of the process


class Found(NamedTuple):
    """A state dict, the keys at which it lay in its file, and others that hold one there.

    ``options`` are ``arch``, ``mean``, ``std`` and what ``args`` hold, unchecked, as in files of
    timm's trainer.
    ``beside`` are the other names at the top of the file.
    """

    tensors: dict[str, Tensor]
    keys: tuple[str, ...]
    others: tuple[str, ...]
    options: dict[Any, Any]
    beside: tuple[str, ...]


def find(path: Path, keys: Sequence[str], *, hint: str) -> Found:
    """The state dict in ``path``, memory-mapped if its format allows.

    Guarantee: no code in the file is executed (``weights_only``), and the file holds the numbers of
    every tensor. If the format has checksums, as zip files do, they are verified. Options, numbers
    of NumPy and optimizers beside the state dict are passed over.

    Args:
        path: A safetensors file, if it has that suffix, else one that `torch.save` wrote.
        keys: Where a state dict may lie, also one within another; the first that does is taken.
        hint: For the error: where else a state dict might be.

    Raises:
        CheckpointError: The file is missing, damaged, or not a mapping of names to tensors.
    """
    safe = path.suffix == ".safetensors"
    held = checkpoint.read(path)[0] if safe else _plain(_unpickled(path))
    whole = held if isinstance(held, dict) else {}
    args = getattr(whole.get("args"), "state", whole.get("args"))
    options = {key: whole.get(key) for key in ("arch", "mean", "std")}
    given = args if isinstance(args, dict) else {}
    options |= {
        key: value for key, value in given.items() if key not in options or value is not None
    }
    taken, others = [], []
    for _ in range(DEEPEST):  # a hostile file may hold itself
        inside = held if isinstance(held, dict) else {}
        there = [key for key in keys if isinstance(inside.get(key), dict) and inside[key]]
        if not there:
            break
        held = _plain(inside[there[0]])
        taken.append(there[0])
        others += there[1:]
    if not isinstance(held, dict) or not held:
        raise CheckpointError(
            f"{path}: expected a state dict, a mapping of names to tensors, got "
            f"{type(held).__name__}; {hint}"
        )
    for name, tensor in held.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise CheckpointError(
                f"{path}: expected a state dict, a mapping of names to tensors, but "
                f"{shown(name)} is a {type(tensor).__name__}; {hint}"
            )
        if not _stored(tensor):
            raise CheckpointError(
                f"{path}: {name[:LONGEST]} is no plain tensor, its numbers in the file"
            )
    beside = tuple(key for key in whole if isinstance(key, str) and key not in taken[:1])
    return Found(held, tuple(taken), tuple(others), options, beside)


def _plain(value: object) -> object:
    """A plain dict, without the attributes that a file can set on an OrderedDict."""
    return dict(dict.items(value)) if isinstance(value, dict) else value


def _unpickled(path: Path) -> object:
    """The contents of a file of `torch.save`."""
    require_file(path, CheckpointError, most=checkpoint.LARGEST)
    if said := formats.told(path, "", own=("torch", "pickle")):
        raise CheckpointError(f"{path}: {said}; a state dict of tensors is wanted")
    try:
        zipped = zipfile.is_zipfile(path)
        if zipped:
            _check_zip(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's warnings about unusual files
            with _ALLOWING, torch.serialization.safe_globals(_STAND_INS):
                return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UNREADABLE as error:
        # PyTorch's message advises executing the file; name only the function that it asked for.
        asked = re.search(r"GLOBAL ([\w.]+)", str(error))
        why = (
            f"it calls {asked[1][:LONGEST]}, and is not executed"
            if asked
            else "no PyTorch file, or damaged"
        )
        raise CheckpointError(f"{path}: {why}; a state dict of tensors is wanted") from None


def _check_zip(path: Path) -> None:
    """Refuse a damaged zip file, or a compressed one, which could unpack to any size."""
    with zipfile.ZipFile(path) as file:
        if any(part.compress_type != zipfile.ZIP_STORED for part in file.infolist()):
            raise CheckpointError(
                f"{path}: its parts are compressed, which torch.save does not do; save it again"
            )
        size = sum(part.file_size for part in file.infolist())
        if size > path.stat().st_size or file.testzip() is not None:
            raise zipfile.BadZipFile


def _stored(tensor: Tensor) -> bool:
    """Whether the file holds every element, so that a short file cannot claim much memory."""
    plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
    if not plain or tensor.is_quantized or tensor.is_nested or tensor.is_complex():
        return False
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


def check(
    path: Path,
    tensors: dict[str, Tensor],
    wanted: dict[str, list[int]],
    *,
    hints: Mapping[str, str] | None = None,
) -> None:
    """Refuse tensors with other names or shapes than wanted, or not finite, or of an inexact type.

    ``path`` is their file, for messages; ``hints`` are reasons why one may be missing, by name.

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
    """The same tensors as float32."""
    return {name: t.detach().float() for name, t in tensors.items()}
