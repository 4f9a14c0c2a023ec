"""The section ``generations`` of params.yaml: pictures that diffusion models make."""

from dataclasses import dataclass
from typing import Annotated

from rrcm.core.ranges import BATCH, SEEDS, not_negative, positive, require
from rrcm.core.registry import Of


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """Pictures of one diffusion model, and how far they are from those it was trained with.

    ``denoiser`` is ``denoisers/<name>`` or ``imported/<name>``, of this ``network``. ``condition``
    is the encoder ``pretrained/<name>`` that guided its training, or ``none``; ``features`` is the
    encoder whose representations are compared. Both are of this ``architecture``. The sampler calls
    the network ``steps`` times. ``images`` pictures are made of each kind, at most as many as there
    are test images, in batches of ``batch_size``.
    """

    denoiser: str
    network: Annotated[str, Of("denoiser_networks")]
    condition: str
    features: str
    architecture: Annotated[str, Of("networks")]
    steps: int
    images: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        not_negative(self, "seed", most=SEEDS)
        positive(self, "batch_size", most=BATCH)
        for key in ("steps", "images"):
            value = getattr(self, key)
            require(value > 1, f"{key}: must be above 1, got {value}")
        positive(self, "steps", most=BATCH)
