"""Backend that runs trained classifiers of all kinds with PyTorch, on the CPU or a GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rrcm.core.errors import BackendError
from rrcm.core.files import sha256
from rrcm.inference import backend
from rrcm.models.trained import purified
from rrcm.models.trained.purified import PurifiedClassifier

about = purified.about
COMPILATIONS = 1024  # of a process: one for each network, precision and shape of a batch
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
AUTO = dict.fromkeys(("cpu", "cuda"), (*PRECISIONS,))  # what --precision auto may choose on each


class Backend(backend.Backend):
    """A trained classifier under ``models/<run>``, at one sigma, in its form for inference."""

    def __init__(
        self,
        root: Path,
        run: str,
        *,
        sigma: float,
        precision: str,
        device: str,
        calibration: Callable[[], Tensor] | None,
    ) -> None:
        """Load ``root/models/<run>``; ``calibration`` is not used.

        With ``precision`` bf16, weights and activations are bfloat16; the noise is added before, in
        float32. fp32 uses no TF32. On a GPU the network is compiled for each batch shape.

        Raises:
            BackendError: The device or the precision is not available.
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
        network: Any  # one of several classes, all with `fix`
        network, config = purified.load(folder)
        self.normals = network.normals if isinstance(network, PurifiedClassifier) else ()
        self.sigma, self.device = sigma, torch.device(device)
        self.network = network.fix(sigma).to(self.device, PRECISIONS[precision])
        if device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
            # Networks of one class count as one function, which by default has eight compilations.
            torch._dynamo.config.recompile_limit = COMPILATIONS
            torch._dynamo.config.accumulated_recompile_limit = COMPILATIONS
            # Without CUDA graphs: they fail in any thread but one (pytorch issue 123177).
            self.network = torch.compile(self.network, fullgraph=True, dynamic=False)
        self.classes: list[str] = config["classes"]
        self.weights = sha256(folder / "model.safetensors")
        self.provider = f"torch-{self.device.type}"

    @torch.inference_mode()
    def scores(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """Computed on the calling thread."""
        if self.device.type == "cpu" and torch.get_num_threads() != 1:
            torch.set_num_threads(1)  # sample() runs one such thread per core
        scores: Tensor = self.network(x) if z is None else self.network(x, z)
        return scores.float()
