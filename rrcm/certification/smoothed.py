"""A smoothed classifier as a Python object: `certify` takes images and returns `Answers`."""

import dataclasses
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rrcm.certification import certify, checks, clean, plausibility
from rrcm.certification.answers import Answer, Answers
from rrcm.certification.attacking import judging, search
from rrcm.certification.attacking.candidates import pools
from rrcm.certification.attacking.expected import Expected
from rrcm.certification.attacking.search import Search
from rrcm.certification.sampling import drawing, replay, store
from rrcm.certification.sampling.journal import InMemoryJournal, Journal
from rrcm.certification.sampling.sampler import VoteSampler, Watch
from rrcm.certification.sampling.voting import threads_restored
from rrcm.certification.votes import reach, records
from rrcm.certification.votes.records import Header, Row
from rrcm.config.certification import Sampling, noise_level
from rrcm.config.defaults import DRAWS
from rrcm.config.foreign import Foreign
from rrcm.core import arguments, registry
from rrcm.core.errors import BackendError, DataError, warn
from rrcm.core.files import require_place
from rrcm.core.labels import named
from rrcm.core.ranges import require
from rrcm.core.schema import listed, shown
from rrcm.data import duplicates, given
from rrcm.data.given import Picture
from rrcm.data.splits.pictures import MAX_VALUE, Fit
from rrcm.data.splits.shards import Split
from rrcm.inference.backend import Backend

ATTACKED = {  # what answers and the attacked classifier have in common
    "weights": "another classifier",
    "precision": "another precision",
    "sigma": "another sigma",
}
Labels = Sequence[int] | np.ndarray | Tensor | None

SEARCH = Search()


class Certifier:
    """What `Smoothed` and `SmoothedNetwork` share: `certify`, attacks and `answer`."""

    @arguments.checked("images", "labels")
    def certify(
        self,
        images: Picture | Iterable[Any],
        *,
        labels: Labels = None,
        n: int | None = None,
        n0: int | None = None,
        alpha: float | None = None,
        radii: Sequence[float] | None = None,
        stop: str | None = None,
        seed: int | None = None,
        batch_size: int | None = None,
        budget: float = 0.0,
        workers: int | None = None,
        devices: Sequence[str] = (),
        votes: str | Path | None = None,
        progress: bool = True,
    ) -> Answers:
        """Certify one image or many. What is None stays as this classifier was made.

        Guarantee: each answer holds with probability at least ``1 - alpha`` over the noise. The
        same images, weights, seed and settings give the same answers, however many workers, devices
        or interruptions there are.

        Args:
            images: A tensor or array, a picture, a path, a list of these, a data set or a loader;
                see `given.collect`. All are held in memory.
            labels: Their classes, for `rrcm.report`, where a data set does not have them.
            n: Most noisy copies of an image that bound the probability of its class.
            n0: Noisy copies before these, which choose the class.
            alpha: Failure probability of each answer.
            radii: Radii that matter: drawing for an image ends when each of them is decided, by
                the rule ``stop``, or else ``spending``. By default multiples of sigma, as far as n
                draws reach.
            stop: Another stopping rule of rrcm/certification/stopping/; ``none`` draws n for each.
            seed: Seed of the noise, by default unpredictable, or that of ``votes``. The certificate
                is void for a picture made with knowledge of the seed.
            batch_size: Noisy copies that the network classifies at a time; by default that of
                ``votes``, or 64, and for a PyTorch network on a CPU as many as are fast.
            budget: Seconds of this call, checks included, after which sampling stops and the
                bounds so far are used, give or take a batch; 0 for no limit.
            workers: Threads of each device; by default as many as PyTorch uses.
            devices: Devices, such as ``["cuda:0", "cuda:1"]``, that share the draws; each gets a
                copy of the network. By default the one where the network is.
            votes: A file to keep the votes in, and beside it what the network answers without
                noise. If it is there, it is read and nothing is drawn, and
                other ``labels`` are put into it; an interrupted call with the same file goes on
                where it was.
            progress: Show a bar with the rate and the time left.

        Raises:
            DataError: An image cannot be read, or has another shape, type or range; ``labels``
                contradict the data set.
            ConfigError: An option is of another type or out of range, the rule makes no claim
                before n draws, or the budget was spent before the first draw.
            CertificateError: Too few draws to certify anything at this alpha.
            BackendError: The classifier is no function of each picture, or there is no such device.
            VotesError: ``votes`` has votes of another classifier, other images or settings.
        """
        budget_start = time.monotonic()  # checks are part of the budget
        workers = drawing.workers() if workers is None else workers
        require(0 <= budget < math.inf, f"budget: must be 0 or more seconds, got {budget}")
        path = None if votes is None else Path(votes)
        if path is not None and not path.is_file():
            require_place(path)
        kept = _kept_header(path)
        if kept is not None:
            seed = kept.seed if seed is None else seed
            batch_size = batch_size or kept.batch_size
        with threads_restored():
            smoothed, split = self._fitted(images, labels)
            asked: dict[str, Any] = {"n": n, "n0": n0, "alpha": alpha, "batch_size": batch_size}
            asked = {name: value for name, value in asked.items() if value is not None}
            draws = _stopping_at(smoothed.draws, stop, radii)
            smoothed = dataclasses.replace(smoothed, draws=dataclasses.replace(draws, **asked))
            header = smoothed._definition(split, seed, budget)
            warn(reach.beyond(header, radii or []), stacklevel=3)
            answers = smoothed._sampled(
                split,
                header,
                devices=devices,
                workers=workers,
                path=path,
                progress=progress,
                budget_start=budget_start,
            )
            beside = path and path.with_name(f"{path.name}.clean.json")
            plain = clean.column(
                smoothed.backend, split, answers.header, answers.rows, path=beside, shown=progress
            )
            answers = dataclasses.replace(answers, clean=plain)
            brightest = float(np.asarray(split.images).max()) / split.max_value
            warn(duplicates.line(answers.pictures, split.labels.tolist()), stacklevel=3)
            tried: dict[str, Any] = {"plain": plain, "brightest": brightest}
            tried["unlike"] = checks.unlike(smoothed.backend, split, header)
            warn(plausibility.of_votes(header, answers.rows, **tried), stacklevel=3)
            return answers

    @arguments.checked("images", "labels")
    def attack(
        self,
        images: Picture | Iterable[Any],
        *,
        labels: Labels = None,
        radii: Sequence[float] | None = None,
        answers: Answers | None = None,
        n: int | None = None,
        n0: int | None = None,
        alpha: float | None = None,
        copies: int = SEARCH.copies,
        steps: int = SEARCH.steps,
        restarts: int = SEARCH.restarts,
        path: str | Path | None = None,
        progress: bool = True,
    ) -> Answers:
        """Attack images at each of ``radii``, to bound the robust accuracy from above.

        Each call is one test at ``alpha``: the best of k calls holds at k alpha.

        Args:
            images: As of `certify`.
            labels: Their classes, where neither a data set nor ``answers`` have them.
            radii: Those of the table; by default those that ``answers`` decided.
            answers: Those of `certify` for the same images, or a slice of them, of which alone the
                images are attacked; by default they are drawn, with ``n``, ``n0`` and ``alpha``.
            n: As of `certify`.
            n0: As of `certify`.
            alpha: As of `certify`.
            copies: Noisy copies in each step; see `attack.Search`.
            steps: Steps of each search.
            restarts: Searches at each radius.
            path: A file to keep what is found in: with the same ``answers`` an interrupted attack
                goes on. The pictures that are found are kept beside it.
            progress: Show bars with the time left.

        Raises:
            BackendError: The classifier has no gradients, as an ONNX file.
            ConfigError: An option is of another type or out of range, or contradicts ``answers``.
            DataError: A label is unknown, or ``answers`` are of another classifier or other images.
        """
        how = Search(copies=copies, steps=steps, restarts=restarts)
        asked = {"n": n, "n0": n0, "alpha": alpha}

        def finder(smoothed: Smoothed, split: Split) -> judging.Finder:
            return search.finder(search.differentiable(smoothed, split), how)

        return self._judged(images, labels, finder, answers, asked, radii, path, progress)

    @arguments.checked("images", "labels", "candidates")
    def judge(
        self,
        images: Picture | Iterable[Any],
        labels: Labels,
        candidates: Any,
        *,
        radii: Sequence[float] | None = None,
        answers: Answers | None = None,
        n: int | None = None,
        n0: int | None = None,
        alpha: float | None = None,
        path: str | Path | None = None,
        progress: bool = True,
    ) -> Answers:
        """Judge pictures that anything has found near ``images``: which succeed, at what distance?

        Guarantee: the smoothed classifier has a wrong answer at the l2 distance ``attacked`` of an
        image, with probability at least ``1 - alpha`` over fresh noise, however candidates were
        found; see `judging`. All candidates of a call are one test: the best of k calls holds at k
        alpha. Candidates are a picture for each of ``images``, in the same order and forms, or a
        list of such batches. Other arguments and errors are those of `attack`.

        Raises:
            DataError: Candidates are not of the images, or not pixels in [0, 1].
        """
        asked = {"n": n, "n0": n0, "alpha": alpha}

        def finder(smoothed: Smoothed, split: Split) -> judging.Finder:
            return judging.candidates(pools(smoothed, split, candidates))

        return self._judged(images, labels, finder, answers, asked, radii, path, progress)

    @arguments.checked()
    def expected(self, *, copies: int = SEARCH.copies, seed: int = 0) -> nn.Module:
        """The smoothed classifier as a model for libraries of attacks, such as torchattacks.

        Scores are the logarithm of the mean probability over ``copies`` noisy copies, whose noise
        depends on ``seed`` and stays the same; see `Expected`. `judge` tells what succeeds.

        Raises:
            ConfigError: ``copies`` is out of range.
        """
        return Expected(self, copies=Search(copies=copies).copies, seed=seed)

    def _judged(
        self,
        images: Any,
        labels: Labels,
        finder_of: Callable[["Smoothed", Split], judging.Finder],
        answers: Answers | None,
        asked: dict[str, Any],
        radii: Sequence[float] | None,
        path: str | Path | None,
        progress: bool,
    ) -> Answers:
        """What is found and judged; the finder is made before any answers are drawn."""
        radii = None if radii is None else _sorted(radii)
        with threads_restored():
            smoothed, split = self._fitted(images, labels)
            if answers is not None:
                for name, value in asked.items():
                    require(
                        value is None, f"{name}: the answers have theirs; give one or the other"
                    )
                answers, split = judging.together(answers, split)
            finder = finder_of(smoothed, split)
            if answers is None:
                pixels, asked = np.asarray(split.images), asked | {"progress": progress}
                answers = smoothed.certify(pixels, labels=split.labels, radii=radii, **asked)
            here = smoothed.header(split)
            for name, what in ATTACKED.items():
                if getattr(answers.header, name) != getattr(here, name):
                    raise DataError(f"attack: the answers are of {what}")
            at = reach.shown(answers.header) if radii is None else radii
            return judging.judged(
                smoothed,
                split,
                answers,
                finder,
                radii=[] if finder.salt else at,  # what is given was not searched at radii
                path=None if path is None else Path(path),
                shown=progress,
            )

    @arguments.checked("image")
    def answer(
        self,
        image: Picture,
        *,
        idx: int = 0,
        seed: int | None = None,
        budget: float = 0.0,
        workers: int = 1,
        watch: Watch | None = None,
    ) -> Answer:
        """Certify one picture, without progress; arguments and errors are those of `certify`.

        ``idx`` is the image's index in the noise stream: with that of a test image, the answer is
        that of its table. ``watch`` is called at each look of the rule; see `VoteSampler`.
        """
        return self.alone(image, idx=idx, seed=seed, budget=budget, workers=workers, watch=watch)[
            0
        ][0]

    def alone(
        self,
        image: Picture,
        *,
        labels: Labels = None,
        idx: int = 0,
        seed: int | None = None,
        budget: float = 0.0,
        workers: int = 1,
        watch: Watch | None = None,
    ) -> tuple[Answers, Split]:
        """`answer` with its votes, and the picture that they are of."""
        require(0 <= budget < math.inf, f"budget: must be 0 or more seconds, got {budget}")
        require(0 <= idx < 2**32, f"idx: must be in [0, 2^32), as the noise counts, got {idx}")
        smoothed, split = self._fitted([image], labels)
        if len(split.idx) != 1:
            raise DataError(f"image: expected one picture, got {len(split.idx)}; see certify")
        split = dataclasses.replace(split, idx=np.array([idx]))
        header = smoothed._definition(split, seed, budget)
        return smoothed._sampled(split, header, workers=workers, watch=watch), split

    def _fitted(self, images: Any, labels: Labels) -> "tuple[Smoothed, Split]":
        """The classifier of pictures of this shape, and the images as it gets them."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Smoothed(Certifier):
    """A classifier of pictures, smoothed with Gaussian noise at one sigma in [0.0001, 10].

    ``backend`` classifies pixels of ``shape`` [C, H, W] at its own sigma; the uint8 pixel value
    ``max_value`` becomes 1.0. Answers are those of the certificate ``draws.certificate`` at failure
    probability ``draws.alpha``.
    ``fit`` resizes picture files to ``shape``; by default they must have that shape. ``trained`` is
    the folder of the network that ``backend`` runs, where its gradients are.
    """

    backend: Backend
    _: KW_ONLY
    shape: tuple[int, int, int]
    draws: Sampling = DRAWS
    max_value: int = MAX_VALUE
    fit: Fit | None = None
    trained: Path | None = None

    def __post_init__(self) -> None:
        noise_level(self.sigma)
        if self.fit is None:
            object.__setattr__(self, "fit", Fit(shape=self.shape))

    @property
    def sigma(self) -> float:
        """The noise level, for pixels in [0, 1]."""
        return self.backend.sigma

    def split(self, images: Picture | Iterable[Any], labels: Labels = None) -> Split:
        """The images as this classifier gets them; arguments and errors as of `given.collect`."""
        classes = self.backend.classes
        split = given.collect(images, labels=labels, classes=named(classes), fit=self.fit)
        split = dataclasses.replace(split, classes=tuple(classes))
        if split.max_value == MAX_VALUE:  # uint8
            split = dataclasses.replace(split, max_value=self.max_value)
        return split

    def _fitted(self, images: Any, labels: Labels) -> "tuple[Smoothed, Split]":
        return self, self.split(images, labels)

    @property
    def device(self) -> torch.device:
        """Where the classifier is."""
        return self.backend.device

    def header(
        self, split: Split, *, run: str = "", shard: str = "1/1", budget: float = 0.0
    ) -> Header:
        """The definition of the votes of ``split``, with noise at ``sigma``.

        Raises:
            ConfigError: As of `store.header`.
        """
        return store.header(self.backend, split, run, self.draws, shard=shard, budget=budget)

    def definition(self) -> Header:
        """What defines an answer but for the picture and the seed: the header of a black one."""
        return self.header(self.split([np.zeros(self.shape, np.uint8)]))

    def _definition(self, split: Split, seed: int | None, budget: float) -> Header:
        odd = hasattr(registry.load("certificates", self.draws.certificate), "NORM")
        require(not odd, "certificate: answers are of l2; `rrcm certify` has tables of other norms")
        seed = secrets.randbits(64) if seed is None else seed
        draws = dataclasses.replace(self.draws, seed=seed, subset="all")
        header = dataclasses.replace(self, draws=draws).header(split, budget=budget)
        certify.require(header, certificates=[header.certificate])
        return header

    def _sampled(
        self,
        split: Split,
        header: Header,
        *,
        workers: int,
        devices: Sequence[str] = (),
        path: Path | None = None,
        progress: bool = False,
        budget_start: float | None = None,
        watch: Watch | None = None,
    ) -> Answers:
        pictures = duplicates.digests(split)
        if path is not None and path.exists():
            header, rows = _kept(path, header, split)
            replay.require_same(self.backend, header, split, rows, where=str(path))
            return Answers(header, rows, pictures=pictures)
        require(workers > 0, f"workers: must be positive, got {workers}")
        backends = [self.backend.on(device) for device in devices] or [self.backend]
        memory = nullcontext(InMemoryJournal())
        with memory if path is None else Journal(_journal(path), header) as kept:
            sampler = VoteSampler(
                split, header, kept, workers=workers, budget_start=budget_start, watch=watch
            )
            states = sampler.draw_votes(backends)
            if progress:
                drawing.shown(states, header, total=len(split.idx), title="certify")
            else:
                deque(states, maxlen=0)
        rows = sampler.rows()
        if path is not None:
            records.write(path, header, rows)
            _journal(path).unlink()
        return Answers(header, rows, pictures=pictures)


@dataclass(frozen=True, eq=False)
class SmoothedNetwork(Certifier):
    """A PyTorch network, smoothed; the shape of its pictures is that of the images.

    It is used as it is when `certify` is called, and checked then. ``foreign`` says all of it.
    """

    foreign: Foreign
    _: KW_ONLY
    draws: Sampling = DRAWS

    @property
    def sigma(self) -> float:
        """The noise level, for pixels in [0, 1]."""
        return self.foreign.sigma

    @property
    def classes(self) -> list[str]:
        """The names of its outputs."""
        return self.foreign.classes or []

    def at(self, shape: tuple[int, int, int]) -> Smoothed:
        """The smoothed classifier of pictures of ``shape`` [C, H, W], by `opened`."""
        foreign = dataclasses.replace(
            self.foreign, channels=shape[0], size=shape[1:], resize="exact"
        )
        return opened(foreign, draws=self.draws)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        network = self.foreign.source
        tensors = (*network.parameters(), *network.buffers())
        return tensors[0].device if tensors else torch.device("cpu")

    def _fitted(self, images: Any, labels: Labels) -> tuple[Smoothed, Split]:
        split = given.collect(images, labels=labels, classes=self.classes, fit=None)
        _, *shape = split.images.shape
        smoothed = self.at(tuple(shape))
        return smoothed, dataclasses.replace(split, classes=tuple(smoothed.backend.classes))


def opened(foreign: Foreign, *, draws: Sampling = DRAWS) -> Smoothed:
    """A classifier trained elsewhere, smoothed; it is a function of each picture.

    Raises:
        BackendError: There is no such classifier, it is damaged, it is no such function, or has
            other outputs than ``classes``, of which two may be alike; see also `checks`.
        ConfigError: A value is invalid.
    """
    with threads_restored():
        component, classes = registry.load("foreign", foreign.kind), foreign.classes
        backend = component.Backend(foreign, device=device())
        fit = dataclasses.replace(
            backend.fit, resize=foreign.resize or backend.fit.resize, upright=foreign.upright
        )
        outputs = len(backend.classes) - backend.count_nan
        if classes is not None:
            if len(classes) != outputs:
                ends = " … ".join(map(repr, (*classes[:1], *classes[1:][-1:])))
                raise BackendError(
                    f"classes: {len(classes)} ({ends}) were given for the {outputs} outputs of "
                    "the model"
                )
            backend.classes = [*classes, *backend.classes[outputs:]]
        size = backend.fixed or min(draws.batch_size, backend.most)
        checks.of_grey(backend, fit.shape, rows=backend.fixed or min(size, DRAWS.batch_size))
    kind = f"foreign/{foreign.kind}"
    draws = dataclasses.replace(draws, backend=kind, precision=backend.precision, batch_size=size)
    return Smoothed(backend, shape=fit.shape, draws=draws, fit=fit)


def device() -> str:
    """``cuda`` if there is a GPU, else ``cpu``."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _kept(path: Path, header: Header, split: Split) -> tuple[Header, list[Row]]:
    """The votes in ``path``, rewritten for ``split`` if they are of other images or labels.

    Raises:
        VotesError: They are votes of something else.
    """
    kept, rows = records.read(path)
    if kept != header:
        known = store.reusable([path], header, split)
        if len(known) < len(split.idx):
            records.same(path, kept, header)
        rows = [known[idx] for idx in split.idx.tolist()]
        records.write(path, header, rows)
    return header, rows


def _stopping_at(draws: Sampling, stop: str | None, radii: Sequence[float] | None) -> Sampling:
    """``draws`` by the rule ``stop``, or else their own or the default one, that decides ``radii``.

    Raises:
        ConfigError: There is no such rule, or it decides no radii.
    """
    rule = DRAWS.stop if radii is not None else draws.stop
    rule = rule if stop is None else stop
    known = registry.names("stopping")
    require(rule in known, f"stop: one of the rules {listed(known)}, got {rule!r}")
    stopping = draws.stopping if rule == draws.stop and radii is None else {}
    if radii is not None:
        able = [n for n in known if "radii" in registry.load("stopping", n).DEFAULTS]
        require(rule in able, f"radii: the rules {listed(able)} decide them, not {rule!r}")
        stopping = {"radii": _sorted(radii)}
    return dataclasses.replace(draws, stop=rule, stopping=stopping)


def _sorted(radii: Sequence[float]) -> list[float]:
    good = len(radii) > 0 and all(0 <= radius < math.inf for radius in radii)
    require(good, f"radii: one or more, each of 0 or more pixels, got {shown(radii)}")
    return sorted({*radii})


def _kept_header(votes: Path | None) -> Header | None:
    """The header of votes, finished or not, if there are any."""
    for path in () if votes is None else (votes, _journal(votes)):
        if path.exists() and path.stat().st_size:
            return records.definition(path)
    return None


def _journal(votes: Path) -> Path:
    """The journal beside a votes file, while it is being drawn."""
    return votes.with_name(f"{votes.name}.journal")
