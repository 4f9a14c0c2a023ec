"""How a training calls its networks: precision, compilation, recomputation, and what it counts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from timm.layers import Attention
from torch import Tensor, nn

from rrcm.config.sections import Compute
from rrcm.core.errors import ConfigError
from rrcm.training.engine import distributed


class Computed(nn.Module):
    """Calls ``module`` under the settings of `Compute`; weights and their names stay as they are.

    Under ``bf16`` matrix products are computed in bfloat16; weights, gradients and the optimizer's
    moments stay float32, and outputs are cast to the type of the input.
    """

    def __init__(self, module: nn.Module, compute: Compute) -> None:
        """Compile ``module`` in place if ``compute.compile``."""
        super().__init__()
        self.module, self.narrow = module, compute.precision == "bf16"
        self._passes = self._gradients = 0
        on_cpu = next(module.parameters()).device.type == "cpu"
        parts: list[Any] = [part for part in module.modules() if isinstance(part, Attention)]
        for part in parts:  # PyTorch's fused attention is slow backwards in bfloat16 on a CPU
            part.fused_attn = not (self.narrow and on_cpu)
        if compute.compile:
            module.compile()

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        """The output of ``module`` for the rows ``x``."""
        gradient, training = torch.is_grad_enabled(), self.module.training
        if gradient:  # in evaluation mode this is an attack: gradient of the input only
            self._passes += len(x) * (3 if training else 2)
            self._gradients += len(x)
        elif training:
            self._passes += len(x)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.narrow):
            y = self.module(x, *rest)
        return y.to(x.dtype)

    def taken(self) -> tuple[int, int]:
        """Passes and gradient evaluations, counted per row, since the last call.

        A backward pass counts as two, or as one where only the input gets a gradient, as in an
        attack. Validation does not count.
        """
        taken = self._passes, self._gradients
        self._passes = self._gradients = 0
        return taken


def prepare(network: nn.Module, compute: Compute, *, name: str) -> None:
    """Set ``network`` to recompute activations if ``compute.recompute``, and share its BatchNorms.

    Raises:
        ConfigError: The architecture ``name`` cannot recompute (``supports_recompute``), or has a
            BatchNorm that several processes cannot share.
    """
    if compute.recompute and not network.supports_recompute:
        raise ConfigError(
            f"compute.recompute: {name} does not support it; set it to false, and save memory by "
            "devices or batch_size"
        )
    setattr(network, "recompute", compute.recompute)  # noqa: B010 (not every module declares it)
    if distributed.world() > 1:
        distributed.synchronise(network)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put ``model`` in evaluation mode; restore the mode of each of its modules afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
