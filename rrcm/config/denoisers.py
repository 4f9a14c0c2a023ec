"""The section ``denoisers`` of params.yaml: training of denoisers and diffusion models."""

from dataclasses import dataclass
from typing import Annotated, Any

from rrcm.config.sections import Compute, Optimizer
from rrcm.core.ranges import BATCH, SEEDS, not_negative, positive, require
from rrcm.core.registry import Of


@dataclass(frozen=True, kw_only=True, slots=True)
class Denoising:
    """How a denoiser is trained: one entry of ``denoisers``.

    ``network`` is a file of rrcm/diffusion/networks/, ``model`` its shape in ``models``;
    ``objective`` is a file of rrcm/diffusion/objectives/ and ``loss`` holds its constants.
    ``start`` is the artifact with its initial weights, ``denoisers/<name>`` or
    ``imported/<name>``, or ``none`` to train from scratch. ``guide`` is the classifier
    ``models/<run>`` of the objective, the encoder ``pretrained/<name>`` of what a conditional
    network is told, or ``none``, and ``architecture`` its file of rrcm/models/networks/. The result
    is an exponential moving average of the weights with momentum ``ema``, or, with 0, the weights
    of the last step. With 0 ``steps`` the weights keep their initial values.
    """

    network: Annotated[str, Of("denoiser_networks")]
    model: str
    objective: Annotated[str, Of("denoiser_objectives")]
    seed: int
    start: str
    guide: str
    architecture: Annotated[str, Of("networks")]
    steps: int
    batch_size: int
    optimizer: Optimizer
    ema: float
    loss: dict[str, Any]
    augment: list[Any]
    compute: Compute

    def __post_init__(self) -> None:
        not_negative(self, "seed", most=SEEDS)
        positive(self, "batch_size", most=BATCH)
        self.compute.shares(self.batch_size)
        not_negative(self, "steps")
        require(0 <= self.ema < 1, f"ema: a momentum in [0, 1), got {self.ema}")
