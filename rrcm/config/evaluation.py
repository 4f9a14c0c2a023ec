"""Sections of ``params.yaml`` for evaluating diffusion models and encoders."""

from dataclasses import dataclass
from typing import Annotated, Literal

from rrcm.core.ranges import BATCH, COPIES, MOST, SEEDS, not_negative, positive, require
from rrcm.core.registry import Of
from rrcm.core.schema import shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """Generation of images by a diffusion model, and their Fréchet distance from real ones.

    ``denoiser`` is the artifact ``denoisers/<name>`` or ``imported/<name>``, ``network`` its file
    of rrcm/diffusion/networks/. ``sampler`` takes ``steps`` steps: ``dpm_solver`` calls the network
    once per step, ``heun`` twice except in the last. ``features`` defines the features of the
    Fréchet distance: the folder ``models/<run>``, for the representation that its head reads, or a
    file with the weights of torch-fidelity's Inception. ``condition`` is ``represented/<name>`` for
    a conditional model, and ``none`` for others. ``architecture`` is the file of
    rrcm/models/networks/ of that run, and of the encoder of the condition.
    """

    denoiser: str
    network: Annotated[str, Of("denoiser_networks")]
    condition: str
    features: str
    architecture: Annotated[str, Of("networks")]
    sampler: Literal["dpm_solver", "heun"]
    steps: int
    images: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        not_negative(self, "seed", most=SEEDS)
        positive(self, "batch_size", most=BATCH)
        for key, most in (("steps", COPIES), ("images", MOST)):
            positive(self, key, most=most)
            require(getattr(self, key) > 1, f"{key}: must be above 1, got {getattr(self, key)}")
        require(bool(self.features.strip()), "features: a folder models/<run> or a file, got ''")


@dataclass(frozen=True, kw_only=True, slots=True)
class Representation:
    """Evaluation of an encoder: a linear probe, and the Fréchet distance of representations.

    ``encoder`` is ``pretrained/<name>``, of this ``architecture`` and ``model``. A linear head is
    trained on clean images, encoded at noise level ``t_min``, and tested at each of ``sigmas``. In
    its loss, ``penalty`` weighs squared weights and ``entropy`` prediction entropy. The distance
    is between representations of ``images`` training images with noise ``t_max`` and ``t_min``,
    both in model space; if ``normalised``, each dimension is first standardised by its mean and
    standard deviation over clean training images.
    """

    encoder: str
    architecture: Annotated[str, Of("networks")]
    model: str
    t_min: float
    t_max: float
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
        not_negative(self, "entropy")
        require(
            0 < self.t_min < self.t_max,
            f"t_min, t_max: need 0 < t_min < t_max, got {self.t_min} and {self.t_max}",
        )
        require(
            self.sigmas == sorted({s for s in self.sigmas if 0 <= s <= MOST}) != [],
            f"sigmas: must be distinct, ascending and not negative, got {shown(self.sigmas)}",
        )
        require(self.images > 1, f"images: must be above 1, got {self.images}")
