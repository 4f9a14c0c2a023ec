"""Sections of ``params.yaml`` after training: export, votes, certificates, report."""

import math
import re
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from rrcm.core import ranges
from rrcm.core.ranges import BATCH, COPIES, COUNT, LAYERS, SEEDS, not_negative, positive, require
from rrcm.core.registry import Of, names
from rrcm.core.schema import shown

# Of ONNX: below, torch writes another; above, ONNX Runtime refuses what it writes.
OPSETS = (17, 25)
DRAWS = 2**32  # most draws per image: a draw's index is 32 bits of the noise counter
Precision = Literal["fp32", "bf16", "fp16", "int8"]
SUBSET = re.compile(r"all|(every|first):[1-9][0-9]{0,9}")

LEAST_NOISE = 1e-4  # sigma: a fortieth of a grey level; radii of less round to 0
MOST_NOISE = 10.0  # sigma: ten times a pixel's range; the smallest common one in 0..255 is 15


def noise_level(sigma: float, *, name: str = "sigma") -> None:
    """Refuse a sigma that is implausible for pixels in [0, 1], such as one in units of 0..255.

    Args:
        sigma: Standard deviation of the noise, for pixels in [0, 1].
        name: Its key or option, for messages.

    Raises:
        ConfigError: It is below LEAST_NOISE, or above MOST_NOISE; suggests it in these units.
    """
    require(0 < sigma < math.inf, f"{name}: must be positive, got {sigma:g}")
    require(
        sigma >= LEAST_NOISE,
        f"{name}: must be at least {LEAST_NOISE:g}, as radii of less round to 0, got {sigma:g}",
    )
    scaled = sigma / 255
    require(
        sigma <= MOST_NOISE,
        f"{name}: {sigma:g} looks like units of 0..255; pixels are in [0, 1], and that is "
        f"{name} {scaled:.3g}"
        if scaled <= MOST_NOISE
        else f"{name}: must be at most {MOST_NOISE:g}, as pixels are in [0, 1], got {sigma:g}",
    )


def require_law(certificate: str, noise: str) -> None:
    """Refuse a certificate of other noise: one that has the name of a noise is of that alone."""
    of_one = {*names("certificates")} & {*names("distributions")}
    agrees = certificate == noise or not of_one & {certificate, noise}
    one = noise if noise in of_one else certificate
    require(
        agrees,
        f"certificate: {certificate} does not hold under the noise {noise}; the certificate {one} "
        f"is of the noise {one}",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Ensemble:
    """Several runs as one classifier, which is referred to by name like a run.

    ``members`` counts them; ``rule`` combines their scores (rrcm/models/trained/ensembles.py).
    """

    members: int
    rule: Literal["mean_logits", "mean_probabilities"]

    def __post_init__(self) -> None:
        positive(self, "members", most=LAYERS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A run as a member of an ensemble, at position ``place``: 1, 2, …"""

    ensemble: str
    place: int
    run: str

    def __post_init__(self) -> None:
        positive(self, "place")


@dataclass(frozen=True, kw_only=True, slots=True)
class Local:
    """Noisy copies of a purified image, over which a classifier's probabilities are averaged.

    There are ``copies`` with noise ``sigma`` in pixel units, or with 0 only the image. ``fixed``
    noise is drawn once, from ``seed``, and used for every image; else every draw has its own.
    """

    copies: int
    sigma: float
    fixed: bool
    seed: int

    def __post_init__(self) -> None:
        not_negative(self, "seed", most=SEEDS)
        not_negative(self, "copies", most=COPIES)
        not_negative(self, "sigma")


@dataclass(frozen=True, kw_only=True, slots=True)
class Purified:
    """A classifier behind a denoiser, named like a run; see rrcm/models/trained/purified.py.

    ``denoiser`` is the artifact ``denoisers/<name>`` or ``imported/<name>``, ``network`` its file
    of rrcm/diffusion/networks/; ``run`` is the classifier and ``architecture`` its file of
    rrcm/models/networks/. ``purifier`` is a file of rrcm/diffusion/purifiers/, with its constants
    ``purify``. Each draw is purified and classified ``votes`` times, and the majority wins.
    ``method`` is its name in reports, and ``sigma`` the noise level it is made for.
    """

    method: str
    sigma: float
    denoiser: str
    network: Annotated[str, Of("denoiser_networks")]
    run: str
    architecture: Annotated[str, Of("networks")]
    purifier: Annotated[str, Of("purifiers")]
    purify: dict[str, Any]
    votes: int
    local: Local

    def __post_init__(self) -> None:
        require(bool(self.method.strip()), "method: what reports call it, got ''")
        noise_level(self.sigma)
        positive(self, "votes", most=COPIES)

    def calls(self) -> dict[str, int]:
        """Number of calls of the denoiser and of the classifier per draw."""
        copies = max(1, self.local.copies)
        steps = self.purify.get("steps", 1)
        return {"denoiser": self.votes * steps, "classifier": self.votes * copies}


@dataclass(frozen=True, kw_only=True, slots=True)
class Eval:
    """A run, ensemble or purified classifier smoothed with a sigma: one row of the report.

    ``architecture`` is the run's, or that of the member at place 1.
    """

    run: str
    architecture: Annotated[str, Of("networks")]
    sigma: float

    def __post_init__(self) -> None:
        noise_level(self.sigma)


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """ONNX export; parity is checked on ``parity_images`` noisy images to ``tolerance``."""

    opset: int
    parity_images: int
    tolerance: float

    def __post_init__(self) -> None:
        low, high = OPSETS
        require(low <= self.opset <= high, f"opset: from {low} to {high}, got {self.opset}")
        positive(self, "parity_images", most=COPIES)
        positive(self, "tolerance")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Noisy votes: ``n0`` draws choose the class, up to ``n`` further ones bound its probability.

    ``split`` is the one to certify; ``choice`` is for comparing recipes. ``stop`` names a rule of
    rrcm/certification/stopping/, whose constants are ``stopping.<stop>``. The rule is made for
    ``certificate``, a file of rrcm/certification/certificates/, at ``certify.alpha``; other
    certificates of the same votes are lower bounds.
    """

    backend: Annotated[str, Of("backends")]
    precision: Precision
    batch_size: int
    noise: Annotated[str, Of("distributions")]
    n0: int
    n: int
    seed: int
    split: Literal["test", "choice"]
    subset: str
    stop: str
    certificate: Annotated[str, Of("certificates")]

    def __post_init__(self) -> None:
        positive(self, "batch_size", most=BATCH)
        positive(self, "n0", "n", most=DRAWS)
        require(0 <= self.seed < 2**64, f"seed: must be in [0, 2^64), got {self.seed}")
        require(
            bool(SUBSET.fullmatch(self.subset)),
            f"subset: expected all, every:K or first:K, got {shown(self.subset)}",
        )
        require_law(self.certificate, self.noise)
        top = self.n0 + self.n
        require(top < DRAWS, f"n: draws are numbered below 2^32, and n0 + n is {top}")

    def at(self, alpha: float, stopping: dict[str, Any]) -> "Sampling":
        """The sampling for certificates at ``alpha``, by the rule ``stop`` of these constants."""
        section = {key.name: getattr(self, key.name) for key in fields(Sample)}
        return Sampling(**section, alpha=alpha, stopping=stopping)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling(Sample):
    """All settings of votes: what goes from options, or params.yaml, to the header of a votes file.

    ``alpha`` is that of ``certify``. ``stopping`` are constants of the rule ``stop``; those that it
    lacks are the rule's ``DEFAULTS``.
    """

    alpha: float
    stopping: dict[str, Any]

    def __post_init__(self) -> None:
        Sample.__post_init__(self)
        ranges.inside("alpha", self.alpha)


@dataclass(frozen=True, kw_only=True, slots=True)
class Certify:
    """Certificates, and the failure probability per image of each; the first is reported."""

    certificates: list[Annotated[str, Of("certificates")]]
    alpha: float

    def __post_init__(self) -> None:
        ranges.inside("alpha", self.alpha)
        distinct = len({*self.certificates}) == len(self.certificates) > 0
        require(
            distinct, f"certificates: need one or more, each once, got {shown(self.certificates)}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Radii of the tables, and the confidence of their intervals."""

    radii: list[float]
    confidence: float

    def __post_init__(self) -> None:
        require(
            self.radii == sorted({r for r in self.radii if 0 <= r <= COUNT}) != [],
            f"radii: must be distinct, ascending and not negative, got {shown(self.radii)}",
        )
        ranges.inside("confidence", self.confidence)
