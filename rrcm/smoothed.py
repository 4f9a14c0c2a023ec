"""A smoothed classifier as an object: a picture goes in, a certified answer comes out."""

import dataclasses
import secrets
from dataclasses import KW_ONLY, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from rrcm import certify, guards, pictures, registry, sample
from rrcm.defaults import DRAWS, STOPPING
from rrcm.drawing import Drawing
from rrcm.errors import BackendError, DataError
from rrcm.evidence import ABSTAIN, coin
from rrcm.journal import Memory
from rrcm.pictures import WHITE, Fit
from rrcm.settings import Sample, noise_level
from rrcm.shards import Split
from rrcm.voters import Backend
from rrcm.votes import UNKNOWN, Header, Row

TOLERANCE = STOPPING[DRAWS.stop]
Picture = str | PathLike[str] | Image.Image | np.ndarray


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the smoothed classifier says of one picture.

    With probability at least ``1 - alpha`` over the noise, it gives the class ``label`` at every
    picture within the l2 distance ``radius`` (pixels in [0, 1], rounded down) of this one, where it
    has a probability of at least ``p_A`` (rounded down) under noise. ``label`` is ABSTAIN and
    ``radius`` 0 where nothing is certain. ``n_A`` of the ``n`` draws after the selection were for
    the class that it chose; ``draws`` counts both rounds, ``stop`` says why they ended and ``rule``
    when they do. The same picture, ``idx`` and ``seed`` give the same answer.
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

    ``backend`` takes pixels of ``shape`` [C, H, W], of which ``white`` are 1.0 to it. ``stopping``
    are the constants of the rule ``draws.stop``. Answers are those of ``draws.certificate``, at
    failure probability ``draws.alpha``. ``fit`` says how picture files come to ``shape``, which by
    default they must have.
    """

    backend: Backend
    _: KW_ONLY
    sigma: float
    shape: tuple[int, int, int]
    draws: Sample = DRAWS
    stopping: dict[str, Any] = field(default_factory=TOLERANCE.copy)
    white: int = WHITE
    fit: Fit | None = None

    def __post_init__(self) -> None:
        noise_level(self.sigma)
        if self.fit is None:
            object.__setattr__(self, "fit", Fit(shape=self.shape))

    def certify(
        self,
        image: Picture,
        *,
        idx: int = 0,
        seed: int | None = None,
        budget: float = 0.0,
        workers: int = 1,
    ) -> Answer:
        """The answer for one picture.

        Args:
            image: A picture file or an open PIL image, brought to ``shape`` as ``fit`` says; or
                pixels, uint8 of ``shape``.
            idx: The image that the noise is of, so that a test image gets the answer of its table.
            seed: Of the noise; by default one that nobody could foresee. A picture that was made
                by someone who knows the seed voids the certificate.
            budget: Seconds after which drawing ends; what is certain by then is certified. 0 draws
                until the stopping rule speaks.
            workers: Threads.

        Raises:
            DataError: The picture cannot be read, or is of another shape or kind of pixels.
            ConfigError: The stopping rule certifies nothing before its end, and there is a budget.
            CertificateError: So few draws can certify nothing at this alpha.
        """
        pixels, classes, one = self._pixels(image), self.backend.classes, np.ones(1, dtype=np.int64)
        split = Split(
            idx=one * idx,
            images=pixels[None],
            labels=one * UNKNOWN,
            classes=tuple(classes),
            white=self.white,
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
        one = {"seed": seed, "subset": "all", "label_aware": False, "paired": 0}
        draws = dataclasses.replace(self.draws, **one)
        return sample.header(
            self.backend, split, "", self.sigma, draws, self.stopping, budget=budget
        )

    def _drawn(self, split: Split, header: Header, workers: int) -> Row:
        kept = Memory()
        drawing = Drawing(split, header, kept, workers=workers, every=np.inf)
        for _ in drawing.votes(self.backend, np.zeros(1, dtype=np.int64)):
            pass
        (row,) = kept.rows.values()
        return row

    def _pixels(self, image: Picture) -> np.ndarray:
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
    """A run of ours, ``root/onnx/<run>.onnx``; picture files must be of its size.

    Raises:
        BackendError: The file is not there, or damaged.
    """
    backend = registry.load("backends", "onnx").Backend(
        Path(root), run, sigma=sigma, precision="fp32", device=device(), calibration=None
    )
    _, *shape = backend.session.get_inputs()[0].shape
    return Smoothed(backend, sigma=sigma, shape=tuple(shape), draws=draws)


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
    resize: str = "crop",
    draws: Sample = DRAWS,
) -> Smoothed:
    """Somebody's ONNX file; the first arguments are those of `rrcm.foreign.onnx.Backend`.

    ``classes`` names its outputs, in their order; ``resize`` is a rule of `Fit`.

    Raises:
        BackendError: The file cannot be certified; see also rrcm/guards.py.
        ConfigError: An argument makes no sense.
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
    return _checked(backend, "onnx", sigma=sigma, classes=classes, resize=resize, draws=draws)


def timm(
    name: str,
    *,
    sigma: float,
    weights: str | PathLike[str] | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    size: tuple[int, int] | None = None,
    classes: list[str] | None = None,
    resize: str = "crop",
    draws: Sample = DRAWS,
) -> Smoothed:
    """A network of timm; arguments are those of `rrcm.foreign.timm.Backend`, and as in `onnx`.

    Raises:
        BackendError: There is no such network, or it cannot be certified.
        ConfigError: An argument makes no sense.
    """
    file = None if weights is None else Path(weights)
    backend = registry.load("foreign", "timm").Backend(
        name, weights=file, mean=mean, std=std, size=size, device=device()
    )
    return _checked(backend, "timm", sigma=sigma, classes=classes, resize=resize, draws=draws)


def _checked(
    backend: Any, kind: str, *, sigma: float, classes: list[str] | None, resize: str, draws: Sample
) -> Smoothed:
    """A foreign classifier, once it has been seen to be a function of each picture alone."""
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
    found = Smoothed(backend, sigma=sigma, shape=fit.shape, draws=draws, fit=fit)
    z = torch.randn(size, *fit.shape, generator=torch.Generator().manual_seed(0))
    guards.function(backend, 0.5 + sigma * z)
    return found


def device() -> str:
    """``cuda`` where there is a GPU, else ``cpu``."""
    return "cuda" if torch.cuda.is_available() else "cpu"
