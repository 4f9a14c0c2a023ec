"""``params.yaml``: what is measured of a diffusion model and of an encoder, beside certificates."""

from dataclasses import dataclass
from typing import Annotated, Literal

from rrcm.limits import BATCH, COPIES, MOST, not_negative, positive, require, seeded
from rrcm.parsing import shown
from rrcm.registry import Of


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """Pictures that a diffusion model makes, and their distance from real ones.

    ``denoiser`` is the artifact ``denoisers/<name>`` or ``imported/<name>``, ``network`` its file
    of rrcm/denoisers/. ``sampler`` goes from noise to pictures in ``steps`` steps: ``dpm_solver``
    calls the network once for each, ``heun`` twice but for the last. ``features`` is where pictures
    are compared: the folder ``models/<run>``, that is, what the head of this run reads, or a file
    with the weights of torch-fidelity's Inception. A denoiser with a condition is told that of
    ``condition``, ``represented/<name>``; for others it is ``shards/train``, for nothing.
    ``architecture`` is the file of rrcm/models/ of that run, and of the encoder of the condition.
    """

    denoiser: str
    network: Annotated[str, Of("denoisers")]
    condition: str
    features: str
    architecture: Annotated[str, Of("models")]
    sampler: Literal["dpm_solver", "heun"]
    steps: int
    images: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        seeded(self)
        positive(self, "batch_size", most=BATCH)
        for key, most in (("steps", COPIES), ("images", MOST)):
            positive(self, key, most=most)
            require(getattr(self, key) > 1, f"{key}: must be above 1, got {getattr(self, key)}")
        require(bool(self.features.strip()), "features: a folder models/<run> or a file, got ''")


@dataclass(frozen=True, kw_only=True, slots=True)
class Representation:
    """What the representations of an encoder tell: a linear probe, and their Fréchet distance.

    ``encoder`` is ``pretrained/<name>``, of this ``architecture`` and ``model``. A linear head is
    trained on clean images, for which the encoder is told ``t_min``, and tried at each of
    ``sigmas``; ``penalty`` is that of its squared weights, ``entropy`` weighs the entropy of its
    predictions. The distance is that between representations of ``images`` training images with
    noise ``t_max`` and ``t_min``, both in model space, as they are or ``normalised``: each
    dimension by its mean and standard deviation over clean training images.
    """

    encoder: str
    architecture: Annotated[str, Of("models")]
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
        seeded(self)
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
