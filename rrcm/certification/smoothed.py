"""A smoothed classifier as a Python object: `certify` takes a picture, returns an `Answer`."""

import dataclasses
import secrets
from dataclasses import KW_ONLY, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from rrcm.certification import certify, checks
from rrcm.certification.sampling import procedure
from rrcm.certification.sampling.journal import InMemoryJournal
from rrcm.certification.sampling.sampler import VoteSampler
from rrcm.certification.sampling.voting import Backend
from rrcm.certification.votes.counts import ABSTAIN, coin
from rrcm.certification.votes.records import Header, Row
from rrcm.config.certification import Sample, noise_level
from rrcm.config.defaults import DRAWS, STOPPING
from rrcm.core import registry
from rrcm.core.errors import BackendError, DataError
from rrcm.core.labels import UNKNOWN
from rrcm.data.splits import pictures
from rrcm.data.splits.pictures import MAX_VALUE, Fit, Resize
from rrcm.data.splits.shards import Split

TOLERANCE = STOPPING[DRAWS.stop]
Picture = str | PathLike[str] | Image.Image | np.ndarray


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The certified answer for one picture.

    With probability at least ``1 - alpha`` over the noise, the smoothed classifier predicts the
    class ``label`` for every picture within l2 distance ``radius`` (pixels in [0, 1], rounded
    down), and the base classifier has that class with probability at least ``p_A`` under noise at
    this one. ``label`` is ABSTAIN and ``radius`` 0 if nothing is certified. ``n_A`` of the ``n``
    draws of the second round voted for the selected class; ``draws`` counts both rounds, ``stop``
    is the reason they ended and ``rule`` describes the stopping rule. The same picture, ``idx`` and
    ``seed`` give the same answer.
    """

    label: int
    name: str
    radius: float
    p_A: float
    n_A: int
    n: int
    draws: int
    stop: str
    rule: str
    alpha: float
    idx: int
    seed: int


@dataclass(frozen=True, eq=False)
class Smoothed:
    """A classifier of pictures, smoothed with Gaussian noise at one sigma in (0, 10].

    ``backend`` classifies pixels of ``shape`` [C, H, W] at its own sigma; the pixel value
    ``max_value`` becomes 1.0. ``stopping`` are the constants of the rule ``draws.stop``. Answers
    are those of the certificate ``draws.certificate`` at failure probability ``draws.alpha``.
    ``fit`` resizes picture files to ``shape``; by default they must have that shape.
    """

    backend: Backend
    _: KW_ONLY
    shape: tuple[int, int, int]
    draws: Sample = DRAWS
    stopping: dict[str, Any] = field(default_factory=TOLERANCE.copy)
    max_value: int = MAX_VALUE
    fit: Fit | None = None

    def __post_init__(self) -> None:
        noise_level(self.sigma)
        if self.fit is None:
            object.__setattr__(self, "fit", Fit(shape=self.shape))

    @property
    def sigma(self) -> float:
        """The noise level, for pixels in [0, 1]."""
        return self.backend.sigma

    def certify(
        self,
        image: Picture,
        *,
        idx: int = 0,
        seed: int | None = None,
        budget: float = 0.0,
        workers: int = 1,
    ) -> Answer:
        """Certify one picture.

        Args:
            image: A picture file or an open PIL image, resized to ``shape`` by ``fit``; or pixels,
                uint8 of ``shape``.
            idx: Index of the image in the noise stream; a test image gets the answer of its table.
            seed: Seed of the noise, by default unpredictable. The certificate is void for a picture
                made with knowledge of the seed.
            budget: Seconds after which sampling stops, and the bounds so far are used; 0 for no
                limit.
            workers: Number of threads.

        Raises:
            DataError: The picture cannot be read, or has another shape or type.
            ConfigError: There is a budget, and the rule makes no claim before n draws.
            CertificateError: Too few draws to certify anything at this alpha.
        """
        pixels, classes, one = self._pixels(image), self.backend.classes, np.ones(1, dtype=np.int64)
        split = Split(
            idx=one * idx,
            images=pixels[None],
            labels=one * UNKNOWN,
            classes=tuple(classes),
            max_value=self.max_value,
        )
        header = self._header(split, secrets.randbits(64) if seed is None else seed, budget)
        rule, level = header.rule(), header.alpha_left(header.alpha)
        rule.claim.certificate.require(rule, alpha=level, pairs=header.paired)
        row = self._drawn(split, header, workers)
        got = certify.certified(
            row,
            header,
            rule,
            certificate=header.certificate,
            alpha=level,
            coin=coin(header.seed, idx),
        )
        return Answer(
            label=got.label,
            name="" if got.label == ABSTAIN else classes[got.label],
            radius=certify.floor(got.radius),
            p_A=certify.floor(got.p_A),
            n_A=got.n_A,
            n=got.n,
            draws=got.n + sum(row.n0.values()),
            stop=row.stop,
            rule=f"{header.stop}: {rule.describe()}",
            alpha=header.alpha,
            idx=idx,
            seed=header.seed,
        )

    def _header(self, split: Split, seed: int, budget: float) -> Header:
        draws = dataclasses.replace(
            self.draws, seed=seed, subset="all", label_aware=False, paired=0
        )
        return procedure.header(self.backend, split, "", draws, self.stopping, budget=budget)

    def _drawn(self, split: Split, header: Header, workers: int) -> Row:
        kept = InMemoryJournal()
        drawing = VoteSampler(
            split,
            header,
            kept,
            noise=procedure.noise(header, split),
            workers=workers,
            every=np.inf,
        )
        for _ in drawing.draw_votes(self.backend, np.zeros(1, dtype=np.int64)):
            pass
        (row,) = kept.rows.values()
        return row

    def _pixels(self, image: Picture) -> np.ndarray:
        assert self.fit is not None  # set in __post_init__
        if isinstance(image, str | PathLike):
            return pictures.read(Path(image), self.fit)
        if isinstance(image, Image.Image):
            return pictures.pixels(image, self.fit, name="the picture")
        if image.shape != self.shape or image.dtype != np.uint8:
            raise DataError(
                f"a picture must be uint8 {self.shape}, [C, H, W], got {image.dtype} {image.shape}"
            )
        return image


def trained(
    run: str, *, sigma: float, root: str | PathLike[str] = ".", draws: Sample = DRAWS
) -> Smoothed:
    """Smooth a run of this project, ``root/onnx/<run>.onnx``; picture files must have its size.

    Raises:
        BackendError: The file is missing or damaged.
    """
    backend = registry.load("backends", "onnx").Backend(
        Path(root), run, sigma=sigma, precision="fp32", device=device(), calibration=None
    )
    _, *shape = backend.session.get_inputs()[0].shape
    return Smoothed(backend, shape=tuple(shape), draws=draws)


def onnx(
    path: str | PathLike[str],
    *,
    sigma: float,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    output: str | None = None,
    classes: list[str] | None = None,
    resize: Resize = "crop",
    draws: Sample = DRAWS,
) -> Smoothed:
    """Smooth any ONNX classifier; arguments up to ``output`` are those of its ``Backend``.

    ``classes`` names its outputs, in order; ``resize`` is a rule of `Fit`. See
    rrcm/inference/foreign/onnx.py.

    Raises:
        BackendError: The file cannot be certified; see also rrcm/certification/checks.py.
        ConfigError: An argument is invalid.
    """
    backend = registry.load("foreign", "onnx").Backend(
        Path(path),
        sigma=sigma,
        mean=mean,
        std=std,
        size=size,
        channels=channels,
        output=output,
        device=device(),
    )
    return _checked(backend, "onnx", classes=classes, resize=resize, draws=draws)


def timm(
    name: str,
    *,
    sigma: float,
    weights: str | PathLike[str] | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    size: tuple[int, int] | None = None,
    classes: list[str] | None = None,
    resize: Resize = "crop",
    draws: Sample = DRAWS,
) -> Smoothed:
    """Smooth a timm network; arguments are those of its ``Backend`` and of `onnx`.

    Raises:
        BackendError: There is no such network, or it cannot be certified.
        ConfigError: An argument is invalid.
    """
    file = None if weights is None else Path(weights)
    backend = registry.load("foreign", "timm").Backend(
        name, sigma=sigma, weights=file, mean=mean, std=std, size=size, device=device()
    )
    return _checked(backend, "timm", classes=classes, resize=resize, draws=draws)


def _checked(
    backend: Any,
    kind: str,
    *,
    classes: list[str] | None,
    resize: Resize,
    draws: Sample,
) -> Smoothed:
    """Check that a foreign classifier is a function of each picture, and smooth it."""
    if classes is not None:
        if len({*classes}) != len(classes) or len(classes) != len(backend.classes):
            raise BackendError(
                f"{len({*classes})} different names were given for the {len(backend.classes)} "
                "outputs of the model"
            )
        backend.classes = classes
    fit = Fit(
        shape=backend.shape,
        resize=resize,
        ratio=backend.crop_pct,
        interpolation=backend.interpolation,
    )
    size = backend.fixed or draws.batch_size
    draws = dataclasses.replace(draws, backend=f"foreign/{kind}", batch_size=size)
    classifier = Smoothed(backend, shape=fit.shape, draws=draws, fit=fit)
    z = torch.randn(size, *fit.shape, generator=torch.Generator().manual_seed(0))
    checks.function(backend, 0.5 + backend.sigma * z)
    return classifier


def device() -> str:
    """``cuda`` if there is a GPU, else ``cpu``."""
    return "cuda" if torch.cuda.is_available() else "cpu"
