"""A device that is not the CPU, on a machine that has none.

Its tensors say that they are on ``gpu:0``, and an operation that mixes them with those of the CPU
is an error, as on a GPU. While the device is there, so is a product of matrices on the CPU, as of a
network that was left there with its input. The numbers are computed by the CPU, so that a result
must have its bits. An operation for which PyTorch declares no CUDA kernel is an error, too, and
autocast chooses types as on CUDA.

PyTorch's fake tensors would do without numbers, but on a build without CUDA their autograd aborts
the process. Importing this module adds the device to the process for
good; so it is imported by processes of its own only (`elsewhere_cases`).
"""

import re
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.tensor  # has the type of generators in its signatures
import torchgen
from ruamel.yaml import YAML
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

NAME = "gpu"
COPIES = {"aten::copy_", "aten::_to_copy"}  # what may mix devices
PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution"}
KERNELS = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
CASTS = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
AUTOCAST = torch._C.DispatchKey.AutocastPrivateUse1


class Module(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


_setup_privateuseone_for_python_backend(NAME, backend_module=Module())
Tensor.pin_memory = lambda self: self  # for copies to the device, which there are none of
_generator, _tensor = torch.Generator, torch.tensor
torch.Generator = lambda device="cpu": _generator("cpu" if NAME in str(device) else device)
# Its copy to the device would not ask anybody.
torch.tensor = lambda data, *, device=None, **rest: _tensor(data, **rest).to(device or "cpu")


class Elsewhere(Tensor):
    """A tensor on the device, whose numbers are those of ``inner``, on the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Elsewhere":
        return Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"Elsewhere({self.inner})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: object) -> "Elsewhere":
        return Elsewhere(inner["inner"])

    def tolist(self) -> list[Any]:
        return self.inner.tolist()

    def new_tensor(self, data: Any) -> Tensor:
        return torch.tensor(data, dtype=self.dtype, device=self.device)

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        return computed(function, args, kwargs or {})


class Device(TorchDispatchMode):
    """The device is there while this context is entered."""

    def __torch_dispatch__(
        self, function: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        if torch.is_inference_mode_enabled():  # else autograd takes composite operations apart
            with self:
                made = function.decompose(*args, **(kwargs or {}))
            if made is not NotImplemented:
                return made
        return computed(function, args, kwargs or {})


def computed(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operation returns, by the CPU."""
    name = function._schema.name
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    there = [isinstance(x, Elsewhere) for x in tensors]
    if any(there) and name not in COPIES:
        for x, away in zip(tensors, there, strict=True):
            if not away and x.dim():  # a number may come from the CPU
                raise RuntimeError(f"{name}: tensors on {NAME} and on the CPU, {[*x.shape]}")
    asked = kwargs.get("device")
    wrapped = any(there) if asked is None else torch.device(asked).type == NAME
    inside = tree_map(_inner, (args, kwargs))
    result = function(*inside[0], **inside[1])
    if not wrapped:
        if name in PRODUCTS:
            raise RuntimeError(f"{name}: on the CPU, although {NAME} is there")
        return result
    require_kernel(str(function))
    result = tree_map(_outer, result)
    return return_and_correct_aliasing(function, args, kwargs, result)


def _inner(x: Any) -> Any:
    if isinstance(x, torch.device) and x.type == NAME:
        return torch.device("cpu")
    return x.inner if isinstance(x, Elsewhere) else x


def _outer(x: Any) -> Any:
    return Elsewhere(x) if isinstance(x, Tensor) and not isinstance(x, Elsewhere) else x


@cache
def _kernels() -> dict[str, dict[str, Any]]:
    found = YAML(typ="safe").load(KERNELS)
    return {one["func"].partition("(")[0]: one for one in found}


@cache
def require_kernel(name: str) -> None:
    """Refuse an operation of PyTorch that has kernels, but none for CUDA."""
    space, _, rest = name.partition(".")
    base, _, overload = rest.partition(".")
    known = _kernels()
    one = known.get(base if overload == "default" else f"{base}.{overload}")
    if space != "aten" or one is None:  # generated from others, such as out= forms
        return
    one = known[one["structured_delegate"]] if "structured_delegate" in one else one
    keys = {key.strip() for keys in one.get("dispatch", {}) for key in keys.split(",")}
    keys |= {"CUDA"} if "ufunc_inner_loop" in one else set()
    if keys and not any(key == "CUDA" or key.startswith("Composite") for key in keys):
        raise RuntimeError(f"{name}: has no CUDA kernel, only {', '.join(sorted(keys))}")


def bits(tensors: Iterable[Tensor]) -> list[bytes]:
    """Bytes of tensors of either device."""
    return [x.detach().cpu().numpy().tobytes() for x in tensors]


def _autocast(library: torch.library.Library) -> None:
    """Let autocast choose types on the device as on CUDA: the lists of operations are PyTorch's."""
    header = CASTS.read_text()
    for kind, dtype in {
        "LOWER_PRECISION_FP": torch.bfloat16,
        "FP32": torch.float32,
        "FP32_SET_OPT_DTYPE": torch.float32,
        "PROMOTE": None,  # to the widest of an operation's
    }.items():
        (body,) = re.findall(rf"define AT_FORALL_{kind}\(_\)((?:.*\\\n)+.*)", header)
        for name, overload in re.findall(r"_\((\w+)(?:, (\w+))?\)", body):
            operation = getattr(getattr(torch.ops.aten, name), overload or "default")
            library.impl(operation, partial(_cast, operation, dtype), AUTOCAST.name)


def _cast(operation: Any, dtype: torch.dtype | None, *args: Any, **kwargs: Any) -> Any:
    floats = [x.dtype for x in tree_leaves((args, kwargs)) if _eligible(x)]
    wanted = dtype or (torch.float32 if torch.float32 in floats else torch.bfloat16)
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(AUTOCAST)):
        args, kwargs = tree_map(lambda x: x.to(wanted) if _eligible(x) else x, (args, kwargs))
        return operation(*args, **kwargs)


def _eligible(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in (torch.float32, torch.bfloat16)


_library = torch.library.Library("aten", "IMPL")  # kept, as what it adds ends with it
_others = torch.library.Library("_", "IMPL")
_others.fallback(torch.library.fallthrough_kernel, AUTOCAST.name)
_autocast(_library)
