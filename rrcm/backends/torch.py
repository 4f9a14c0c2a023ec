"""PyTorch: runs a trained classifier as it was trained, on the CPU or a GPU."""

from pathlib import Path

import torch
from torch import Tensor

from rrcm import classifier
from rrcm.errors import BackendError
from rrcm.files import sha256


class Backend:
    """A trained classifier under ``models/<run>``, in evaluation mode."""

    def __init__(self, root: Path, run: str, *, precision: str, device: str) -> None:
        """Load ``root/models/<run>``.

        ``precision`` bf16 runs matrix products in bfloat16; noise has been added in float32 before.
        """
        folder = root / "models" / run
        self.network, config = classifier.load(folder)
        if device == "cuda" and not torch.cuda.is_available():
            raise BackendError("no CUDA device here; `rrcm doctor` shows what there is")
        self.network.to(device)
        self.device = torch.device(device)
        self.classes: list[str] = config["classes"]
        self.weights = sha256(folder / "model.safetensors")
        self.provider = f"torch-{self.device.type}"
        self.bf16 = precision == "bf16"

    def scores(self, x: Tensor, sigma: float) -> Tensor:
        """Scores [B, K] of noisy pixels ``x`` [B, C, H, W]; computed on the calling thread."""
        if self.device.type == "cpu" and torch.get_num_threads() != 1:
            torch.set_num_threads(1)  # sample() runs one such thread per core
        with torch.inference_mode(), torch.autocast(self.device.type, enabled=self.bf16):
            level = torch.tensor(sigma, dtype=torch.float32, device=self.device)
            return self.network(x.to(self.device), level).float().cpu()
