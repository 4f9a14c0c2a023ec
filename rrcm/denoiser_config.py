"""The section ``denoisers`` of params.yaml: what removes noise before a classifier looks."""

from dataclasses import dataclass
from typing import Annotated, Any

from rrcm.config import Compute, Optimizer
from rrcm.limits import BATCH, not_negative, positive, require, seeded
from rrcm.registry import Of


@dataclass(frozen=True, kw_only=True, slots=True)
class Denoising:
    """How a denoiser is trained: one entry of ``denoisers``.

    ``network`` is a file of rrcm/denoisers/, ``model`` its shape in ``models``; ``objective`` is a
    file of rrcm/denoising/ and ``loss`` holds its constants. It starts from ``start``, that is
    ``shards/train`` (from scratch), ``denoisers/<name>`` or ``imported/<name>``; ``guide`` is what
    its objective looks at beside the images: ``models/<run>``, ``represented/<name>``, or
    ``shards/train`` for nothing, and ``architecture`` its file of rrcm/models/. What is kept is the
    average of its weights with the momentum ``ema``, or with 0 the weights of the last step. No
    steps leave it as it starts.
    """

    network: Annotated[str, Of("denoisers")]
    model: str
    objective: Annotated[str, Of("denoising")]
    seed: int
    start: str
    guide: str
    architecture: Annotated[str, Of("models")]
    steps: int
    batch_size: int
    optimizer: Optimizer
    ema: float
    loss: dict[str, Any]
    augment: list[Any]
    compute: Compute

    def __post_init__(self) -> None:
        seeded(self)
        positive(self, "batch_size", most=BATCH)
        not_negative(self, "steps")
        require(0 <= self.ema < 1, f"ema: a momentum in [0, 1), got {self.ema}")
