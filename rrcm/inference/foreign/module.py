"""Backend for a PyTorch network in memory, as it is; and for one that denoises."""

import torch
from torch import Tensor

from rrcm.inference.foreign._network import Backend

__all__ = ["Backend", "Denoiser"]


class Denoiser(Backend):
    """A denoiser in memory, of pixels in [0, 1]; its ``scores`` are pictures [B, C, H, W]."""

    meant = "pictures of the shape that it is given"

    @torch.inference_mode()
    def scores(self, x: Tensor) -> Tensor:
        """Denoised pixels of noisy pixels ``x``, both float32 [B, C, H, W] on ``device``."""
        return self._run(x).float()

    def _fits(self, scores: Tensor) -> bool:
        return scores.shape == (2, *self.shape)
