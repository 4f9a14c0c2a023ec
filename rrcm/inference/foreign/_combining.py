"""Finds what a network makes of all pictures of a batch at once, though it may never show.

A step such as `if mask.all()` or `x / x.amax()` looks at the whole batch, and may decide so rarely
how a picture is classified that no answer shows it. So each tensor of a call is followed: is it
made of all rows of the batch, of one, or of some?
"""

import traceback
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

EMPTY = ("new_", "_like")  # parts of the names of operations that take only the form of a tensor
FORM = ("to", "type_as", "view_as", "expand_as", "reshape_as")  # of those after the first
SELECTING = (  # rows, as many as the pictures decide
    *("index", "index_select", "gather", "take", "masked_select", "nonzero", "argwhere"),
    *("unique_dim", "_unique2", "unique_consecutive"),
)


class Made(Enum):
    """Of which rows of the batch a tensor is made, where it is not one row alone."""

    ALL = "all"
    SOME = "some"


class Combined(TorchDispatchMode):
    """Finds the ``place`` where a call makes something of all ``pictures`` together, "" if none.

    That is what has no part for each of them: a single number, or one of each channel. What is made
    of one picture is not, nor what is made of a few that were selected, unless it is one number of
    several.
    """

    supports_higher_order_operators = True  # as torch.cond is

    def __init__(self, pictures: Tensor) -> None:
        """Begin with the pictures [B, C, H, W], of which there are two or more."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        self.place, self.rows = "", len(pictures)
        # By storage, which views share; the reference keeps its number from being used again.
        self._made: dict[int, tuple[StorageWeakRef, Made | int, int]] = {}
        self._note(pictures, Made.ALL)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and follow what it makes of the pictures."""
        computed = func(*args, **(kwargs or {}))
        name = getattr(func, "_opname", str(func))
        if any(part in name for part in EMPTY):
            return computed
        given = args[:1] if name in FORM else [args, kwargs]
        read = [one for one in tree_leaves(given) if isinstance(one, Tensor)]
        kinds = {kind for one in read if (kind := self._of(one)) is not None}
        results = [one for one in tree_leaves(computed) if isinstance(one, Tensor | bool)]
        if kinds and results and not getattr(func, "is_view", False):
            self._look(name, read, kinds, results[0])
            for one in results:
                if isinstance(one, Tensor):
                    self._note(one, self._joined(kinds, one))
        return computed

    def _look(self, name: str, read: list[Tensor], kinds: set[Made | int], first: Any) -> None:
        """Note the place if the ``first`` result is made of all pictures, and not of each."""
        size = first.numel() if isinstance(first, Tensor) else 1
        if self.place or name in SELECTING or (name == "where" and len(read) == 1):
            return
        several = any(self._of(one) is Made.SOME and len(one) > 1 for one in read if one.ndim)
        if (Made.ALL in kinds and size % self.rows) or (size == 1 and several):
            self.place = f"{_caller()}{name}"

    def _joined(self, kinds: set[Made | int], made: Tensor) -> Made | int:
        if len(kinds) == 1 and isinstance(kind := next(iter(kinds)), int):
            return kind
        return Made.SOME if made.numel() % self.rows else Made.ALL

    def _note(self, made: Tensor, kind: Made | int) -> None:
        """What is written to a part of a storage is a part of all that it holds."""
        made = _plain(made)
        if made.layout is not torch.strided:
            return
        storage = made.untyped_storage()
        old = self._made.get(storage._cdata)
        if old and old[1] != kind:
            kind = Made.ALL
        whole = made.ndim and len(made) == self.rows and made.stride(0) == max(made.stride())
        self._made[storage._cdata] = (StorageWeakRef(storage), kind, made.stride(0) if whole else 0)

    def _of(self, tensor: Tensor) -> Made | int | None:
        """Of which rows a tensor is made, by its storage and its place there."""
        own = _plain(tensor)
        if own.layout is not torch.strided:  # as of MKL-DNN, whose operations are not all seen
            return Made.ALL if own.shape[:1] == (self.rows,) else None
        known = self._made.get(own.untyped_storage()._cdata)
        if known is None or known[1] is not Made.ALL or not own.numel():
            return known and known[1]
        if stride := known[2]:
            first = own.storage_offset()
            last = first + sum((n - 1) * s for n, s in zip(own.shape, own.stride(), strict=True))
            if first // stride == last // stride:
                return first // stride
        return Made.SOME if own.numel() % self.rows else Made.ALL


def _plain(tensor: Tensor) -> Tensor:
    """Without the wrapper that `torch.vmap` puts around each row."""
    functorch = torch._C._functorch
    while functorch.is_batchedtensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def _caller() -> str:
    """The line of the network's own Python that runs an operation, if that can be told."""
    inside = (str(Path(torch.__file__).parent), __file__, "<")
    frames = ((Path(f.f_code.co_filename), line) for f, line in traceback.walk_stack(None))
    path, line = next(one for one in frames if not str(one[0]).startswith(inside))
    return "" if path.is_relative_to(Path(__file__).parent) else f"{path.name}:{line}: "
