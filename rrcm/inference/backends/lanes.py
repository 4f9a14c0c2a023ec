"""Backend that runs small networks on a CPU, with one image in each lane of a vector register.

The network is compiled for the processor (rrcm/inference/lanes/). Only operations whose IEEE 754
result is unique are used, and each image in the same order, so that from the same constants a score
has the same bits in every batch, on any number of threads and on every processor. PyTorch folds the
constants, in float64; where its sums differ between processors, the float32 that they are rounded
to may differ too, in rare cases. Fastest for networks whose activations fit into a core's cache.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rrcm.core.errors import BackendError
from rrcm.core.files import read_config, sha256
from rrcm.inference import backend
from rrcm.inference.lanes import lenet, resnet9, vit
from rrcm.inference.lanes.program import here
from rrcm.models.trained import ensembles, purified

about = purified.about
PRECISIONS = ("fp32",)
AUTO = {"cpu": PRECISIONS}  # what --precision auto may choose
NETWORKS = {"lenet": lenet, "resnet9": resnet9, "vit": vit}
RULE = "mean_logits"  # sums and quotients are unique in IEEE 754, exponentials are not
SMALLEST = 16  # numbers of an image: a register of them is read at once


class Backend(backend.Backend):
    """A network of `NETWORKS`, or an ensemble of such, in ``models/<run>``, at one sigma."""

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
        """Compile ``root/models/<run>``; ``calibration`` is not used.

        It runs on the CPU whatever the ``device``, so that votes are the same on a host with a GPU.

        Raises:
            BackendError: It is another precision than fp32, or another kind of network.
            CheckpointError: The classifier is missing or damaged.
        """
        if precision not in PRECISIONS:
            raise BackendError(
                f"backend lanes offers fp32, not {precision}; torch has bf16, onnx has fp16 and "
                "int8"
            )
        folder = root / "models" / run
        declared = read_config(folder)
        members = [one.get("model", {}) for one in declared.get("members", [declared])]
        kinds = [model.get("architecture") for model in members]  # purified: of none
        rule = declared.get("ensemble", {}).get("rule", RULE)
        if rule != RULE or not all(kind in NETWORKS for kind in kinds):
            raise BackendError(
                f"{folder}: backend lanes runs networks of {', '.join(NETWORKS)}, and ensembles of "
                f"them by {RULE}; torch and onnx run this one"
            )
        shape = members[0]["shape"]
        pictures = (shape["channels"], shape["image_size"], shape["image_size"])
        if math.prod(pictures) < SMALLEST:
            raise BackendError(
                f"{folder}: backend lanes takes images of {SMALLEST} numbers or more"
            )
        network: Any  # an inference form, which has `fix`
        network, config = purified.load(folder)
        fixed = network.fix(sigma)
        self.sigma, self.device = sigma, torch.device("cpu")
        self.programs = [
            NETWORKS[kind].build(member, pictures, here())
            for kind, member in zip(kinds, getattr(fixed, "members", [fixed]), strict=True)
        ]
        self.classes: list[str] = config["classes"]
        self.weights = sha256(folder / "model.safetensors")
        self.provider = "lanes"

    @torch.inference_mode()
    def scores(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """Computed on the calling thread."""
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)  # sample() runs one such thread per core
        return ensembles.mean([program.run(x) for program in self.programs], RULE)
