"""How a network is called in training: in which precision, compiled or not, and how often."""

import os
import shlex
import tempfile

import torch
from torch import Tensor, nn

from rrcm.config import Compute
from rrcm.errors import TrainingError


class Computed(nn.Module):
    """``module``, called as `Compute` asks for; its weights and their names are not touched.

    Under ``bf16`` matrix products are computed in bfloat16, while weights, and so gradients and the
    optimizer's moments, stay float32; what is returned has the type of the input again.
    """

    def __init__(self, module: nn.Module, compute: Compute) -> None:
        """Compile ``module`` in place if asked to.

        Raises:
            TrainingError: It is to be compiled where PyTorch's compiler does not work.
        """
        super().__init__()
        self.module, self.half = module, compute.precision == "bf16"
        self._passes = self._gradients = 0
        if compute.compile:
            _require_plain_paths()
            module.compile()

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        """What ``module`` makes of the rows ``x``."""
        gradient, training = torch.is_grad_enabled(), self.module.training
        if gradient:  # an attack's, in evaluation mode, goes to the input only
            self._passes += len(x) * (3 if training else 2)
            self._gradients += len(x)
        elif training:
            self._passes += len(x)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.half):
            y = self.module(x, *rest)
        return y.to(x.dtype)

    def taken(self) -> tuple[int, int]:
        """What training took since this was last asked: passes of a row, and gradients of one.

        A backward pass counts as two, and as one where it goes to the input only, as in an attack.
        Validation takes nothing.
        """
        taken = self._passes, self._gradients
        self._passes = self._gradients = 0
        return taken


def _require_plain_paths() -> None:
    """Refuse spaces where PyTorch puts paths into the command of a C++ compiler, not for a GPU."""
    if torch.cuda.is_available():
        return
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR", tempfile.gettempdir())
    for path, cure in (
        (cache, "set TORCHINDUCTOR_CACHE_DIR to a folder without"),
        (os.path.dirname(torch.__file__), "install the environment in one without"),
    ):
        if shlex.split(path) != [path]:
            raise TrainingError(
                f"compute.compile: {path} has a space or a quote, with which PyTorch cannot "
                f"compile; {cure}, or set compile: false"
            )
