"""Distributed training: ranks, collectives, and BatchNorm over all processes.

torchrun starts one process for each device (docs/training.md). In a single process every function
here does nothing. Processes share each batch evenly and start with the same weights; gradients,
BatchNorm statistics and negatives are those of the whole batch, so training gives the same weights
as one process, up to rounding.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from rrcm.core.errors import ConfigError

Tensors = dict[str, Tensor]


def launched() -> bool:
    """Whether torchrun started this process."""
    return dist.is_available() and dist.is_torchelastic_launched()


def device() -> str:
    """This process's device: a GPU of its own if there are any, else the CPU."""
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{os.environ['LOCAL_RANK']}" if launched() else "cuda"


@contextmanager
def joined() -> Iterator[None]:
    """Join the process group if torchrun started this process, and leave it at the end."""
    if not launched():
        yield
        return
    if device() != "cpu":
        torch.cuda.set_device(device())
    dist.init_process_group("gloo" if device() == "cpu" else "nccl")
    try:
        yield
    finally:
        dist.destroy_process_group()


def world() -> int:
    """Number of processes; 1 without torchrun."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Rank of this process, from 0."""
    return dist.get_rank() if world() > 1 else 0


def part(batch_size: int, *, where: str) -> int:
    """Number of rows of a batch for each process.

    Raises:
        ConfigError: The rows cannot be shared evenly.
    """
    if batch_size % world():
        raise ConfigError(
            f"{where}: a batch_size of {batch_size} cannot be shared evenly by {world()} devices"
        )
    return batch_size // world()


def gather(x: Tensor) -> Tensor:
    """Rows ``x`` [b, ...] of all processes in order of rank, [world * b, ...], without gradient.

    A single process gets ``x`` itself.
    """
    if world() == 1:
        return x
    x = x.detach().contiguous()
    parts = [torch.empty_like(x) for _ in range(world())]
    dist.all_gather(parts, x)
    return torch.cat(parts)


def total(x: Tensor) -> Tensor:
    """The sum of ``x`` over all processes; gradients are summed over processes too."""
    return x if world() == 1 else _Total.apply(x)  # type: ignore[no-untyped-call]  # torch's has no types


def from_first(
    found: tuple[Tensors, dict[str, str]] | None, *, device: str
) -> tuple[Tensors, dict[str, str]] | None:
    """Broadcast ``found`` of process 0; the arguments of other processes are ignored."""
    message = [found]
    if world() > 1:
        dist.broadcast_object_list(message, device=torch.device(device))
    return message[0]


def synchronise(module: nn.Module) -> None:
    """Let every BatchNorm in ``module`` use statistics of the whole batch; names stay.

    Raises:
        ConfigError: A BatchNorm is of an unknown subclass, such as one with an activation inside;
            ``module`` is unchanged.
    """
    norms = {
        n: m for n, m in module.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)
    }
    for name, norm in norms.items():
        if type(norm) not in (nn.BatchNorm1d, nn.BatchNorm2d, _Shared):
            raise ConfigError(
                f"compute.devices: {name} is a {type(norm).__name__}, which would see a part of "
                "each batch; take nn.BatchNorm2d in its place, or 1 device"
            )
    for norm in norms.values():
        norm.__class__ = _Shared  # which has no state of its own


class _Shared(nn.modules.batchnorm._BatchNorm):
    """BatchNorm over the rows of all processes, [b, D, ...] each.

    nn.SyncBatchNorm does the same, but not on a CPU.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x`` [b, D, ...] and update the running statistics; shape and type stay."""
        if world() == 1 or not self.training:
            return super().forward(x)
        wide = x.to(self.weight.dtype)  # x may be narrower under autocast; as in torch
        others, shape = [0, *range(2, x.ndim)], [-1] + [1] * (x.ndim - 2)
        rows = world() * x.numel() // x.shape[1]
        centre = total(wide.sum(dim=others)) / rows  # [D]
        wide = wide - centre.view(shape)
        variance = total(wide.square().sum(dim=others)) / rows  # [D]
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(centre, self.momentum)
            self.running_var.lerp_(variance * rows / (rows - 1), self.momentum)
        slope = torch.rsqrt(variance + self.eps) * self.weight
        return (wide * slope.view(shape) + self.bias.view(shape)).to(x.dtype)

    def _check_input_dim(self, x: Tensor) -> None:
        """Rows and images are fine, whatever the class was."""


class _Total(torch.autograd.Function):
    """Sum over processes, forwards and backwards."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient
