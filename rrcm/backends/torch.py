"""PyTorch: runs a trained, combined or purified classifier, on the CPU or a GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rrcm import ensembles, purified
from rrcm.errors import BackendError
from rrcm.files import sha256

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def about(root: Path, run: str) -> dict[str, Any]:
    """Of ``root/models/<run>``: its ``weights``, and the ``params`` that made it, if it says so."""
    folder = root / "models" / run
    params = purified.read_config(folder / "config.json").get("params", {})
    return {"weights": sha256(folder / "model.safetensors"), "params": params}


class Backend:
    """A trained classifier under ``models/<run>``, at one sigma, in its form of rrcm/folding/.

    ``normals`` is the shape of the normal numbers that a row of a purified one asks for, or ().
    """

    def __init__(
        self,
        root: Path,
        run: str,
        *,
        sigma: float,
        precision: str,
        device: str,
        calibration: Callable[[], Tensor] | None,
        prefixes: bool = False,
    ) -> None:
        """Load ``root/models/<run>``; ``calibration`` is not used.

        With ``prefixes``, scores are [B, k, K]: those of an ensemble's first 1, 2, …, k members.

        ``precision`` bf16 has weights and activations in bfloat16; noise has been added in float32
        before. fp32 uses no TF32. On a GPU the network is compiled for the first batch's shape, and
        for each further one.

        Raises:
            BackendError: The device or the precision is not there, or there are no ``prefixes``,
                because it is no ensemble.
            CheckpointError: The classifier is missing or damaged.
        """
        if precision not in PRECISIONS:
            raise BackendError(
                f"backend torch offers {' and '.join(PRECISIONS)}, not {precision}; onnx has fp16 "
                "and int8"
            )
        if device == "cuda" and not torch.cuda.is_available():
            raise BackendError("no CUDA device here; `rrcm doctor` shows what there is")
        folder = root / "models" / run
        network, config = purified.load(folder)
        if prefixes and "ensemble" not in config:
            raise BackendError(f"{folder}: no ensemble, so that there are no prefixes")
        self.normals: tuple[int, ...] = getattr(network, "normals", ())
        self.device = torch.device(device)
        self.network = network.fix(sigma).to(self.device, PRECISIONS[precision])
        if prefixes:
            self.network = ensembles.Prefixes(self.network)
        if device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = False
            self.network = torch.compile(
                self.network, mode="max-autotune", fullgraph=True, dynamic=False
            )
        self.classes: list[str] = config["classes"]
        self.weights = sha256(folder / "model.safetensors")
        self.provider = f"torch-{self.device.type}"

    @torch.inference_mode()
    def scores(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """Scores [B, K] of noisy pixels ``x`` [B, C, H, W], both float32 on ``device``.

        With normals, ``z`` [B, *normals] is needed, else it is not given. Computed on the calling
        thread; on a GPU, in the order of its current stream.
        """
        if self.device.type == "cpu" and torch.get_num_threads() != 1:
            torch.set_num_threads(1)  # sample() runs one such thread per core
        # A copy, because a CUDA graph writes its next result over this one.
        scores = self.network(x) if z is None else self.network(x, z)
        return scores.to(torch.float32, copy=True)
