"""How a network is called in training: in which precision, compiled or not, and how often."""

import torch
from torch import Tensor, nn

from rrcm.config import Compute


class Computed(nn.Module):
    """``module``, called as `Compute` asks for; its weights and their names are not touched.

    Under ``bf16`` matrix products are computed in bfloat16, while weights, and so gradients and the
    optimizer's moments, stay float32; what is returned has the type of the input again.
    """

    def __init__(self, module: nn.Module, compute: Compute) -> None:
        """Compile ``module`` in place if asked to."""
        super().__init__()
        self.module, self.half = module, compute.precision == "bf16"
        self._rows = 0
        if compute.compile:
            module.compile()

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        """What ``module`` makes of the rows ``x``."""
        if self.module.training:
            self._rows += len(x) * (3 if torch.is_grad_enabled() else 1)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.half):
            y = self.module(x, *rest)
        return y.to(x.dtype)

    def taken(self) -> int:
        """Rows computed in training since this was last asked; a backward pass counts as two."""
        rows, self._rows = self._rows, 0
        return rows
