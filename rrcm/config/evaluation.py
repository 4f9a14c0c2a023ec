"""The section ``representations`` of params.yaml: what encoders have learned."""

from dataclasses import dataclass
from typing import Annotated, Literal

from rrcm.core.ranges import BATCH, COUNT, SEEDS, not_negative, positive, require
from rrcm.core.registry import Of
from rrcm.core.schema import shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Representation:
    """Evaluation of an encoder: a linear probe, and the Fréchet distance of representations.

    ``encoder`` is ``pretrained/<name>``, of this ``architecture`` and ``model``. A linear head is
    trained on images with noise ``train_sigma``, and tested on those of ``split`` at each of
    ``sigmas``, in pixels; sigma 0 is clean images, encoded at noise level ``t_min``. In its loss,
    ``penalty`` weighs squared weights and ``entropy`` prediction entropy. The distance is between
    representations of ``images`` training images with noise ``t_max`` and ``t_min``, both in model
    space; if ``normalised``, each dimension is first standardised by its mean and standard
    deviation over clean training images.
    """

    encoder: str
    architecture: Annotated[str, Of("networks")]
    model: str
    t_min: float
    t_max: float
    train_sigma: float
    split: Literal["test", "choice", "validation"]
    sigmas: list[float]
    penalty: float
    entropy: float
    normalised: bool
    images: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        not_negative(self, "seed", most=SEEDS)
        positive(self, "penalty", "t_max", "images")
        positive(self, "batch_size", most=BATCH)
        not_negative(self, "entropy", "train_sigma")
        require(
            0 < self.t_min < self.t_max,
            f"t_min, t_max: need 0 < t_min < t_max, got {self.t_min} and {self.t_max}",
        )
        require(
            self.sigmas == sorted({s for s in self.sigmas if 0 <= s <= COUNT}) != [],
            f"sigmas: must be distinct, ascending and not negative, got {shown(self.sigmas)}",
        )
        require(self.images > 1, f"images: must be above 1, got {self.images}")
