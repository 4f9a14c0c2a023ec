"""Tensors on disk: safetensors, whole or absent; never a pickle."""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from rrcm.errors import CheckpointError
from rrcm.files import atomic


def save(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write named tensors, and text beside them, to ``path``; the same input, the same bytes."""
    with atomic(path) as part:
        save_file({name: t.detach().contiguous() for name, t in tensors.items()}, part, metadata)


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the text of ``path``.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    if not path.exists():
        raise CheckpointError(f"{path}: not found")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}
    except SafetensorError as error:
        raise CheckpointError(f"{path}: damaged ({error})") from None


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
