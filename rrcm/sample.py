"""Sampling: noisy votes of a base classifier, the only costly step of certification.

Guarantee: the noise of a draw depends on (seed, image, draw) alone, all batches have one shape and
are computed on one thread each. So votes do not depend on the order of images, on restarts, on
shards or on the number of workers, if a row's scores do not depend on the other rows of its batch
(`rows_are_alone` tests it on the spot).
"""

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rrcm import registry, votes
from rrcm.drawing import Drawing, Progress
from rrcm.errors import BackendError, ConfigError
from rrcm.journal import Journal
from rrcm.settings import Sample
from rrcm.shards import Split
from rrcm.voters import Backend
from rrcm.votes import Header


def header(
    backend: Backend,
    split: Split,
    run: str,
    sigma: float,
    cfg: Sample,
    stopping: dict[str, Any],
    *,
    shard: str = "1/1",
    budget: float = 0.0,
) -> Header:
    """The definition of the votes of ``split``; ``stopping`` are the constants of the rule.

    Raises:
        ConfigError: ``shard`` is none, or the rule cannot be stopped by a ``budget``.
    """
    i, slash, k = shard.partition("/")
    if not (slash and i.isdecimal() and k.isdecimal() and 1 <= int(i) <= int(k)):
        raise ConfigError(f"shard: expected i/k with 1 <= i <= k, such as 1/4, got {shard!r}")
    if budget and cfg.stop not in ("grid", "anytime"):
        raise ConfigError(
            f"budget: rule {cfg.stop!r} certifies nothing before its end; use grid or anytime"
        )
    places = subset(cfg.subset, len(split.idx))
    noise, pixels = registry.load("noises", cfg.noise), math.prod(split.images.shape[1:])
    return Header(
        format=votes.FORMAT,
        noise=cfg.noise,
        stream=noise.NAME,
        slack=noise.slack(sigma, pixels=pixels, white=split.white),
        run=run,
        weights=backend.weights,
        sigma=sigma,
        n0=cfg.n0,
        n=cfg.n,
        seed=cfg.seed,
        stop=cfg.stop,
        stopping=stopping,
        certificate=cfg.certificate,
        alpha=cfg.alpha,
        label_aware=cfg.label_aware,
        soft=cfg.soft,
        paired=cfg.paired,
        budget=budget,
        backend=cfg.backend,
        provider=backend.provider,
        precision=cfg.precision,
        batch_size=cfg.batch_size,
        split=split.name,
        subset=cfg.subset,
        images=len(places),
        pixels=_identity(split, places),
        shard=f"{int(i)}/{int(k)}",
        classes=list(backend.classes),
    )


def subset(rule: str, images: int, *, shard: str = "1/1") -> np.ndarray:
    """Positions in a split that a rule selects, ``all``, ``every:K`` or ``first:K``, of a shard."""
    kind, _, number = rule.partition(":")
    i, k = map(int, shard.split("/"))
    every = np.arange(images)
    if rule == "all":
        chosen = every
    elif kind in ("every", "first") and number.isdecimal() and int(number) > 0:
        chosen = every[:: int(number)] if kind == "every" else every[: int(number)]
    else:
        raise ConfigError(f"sample.subset: expected all, every:K or first:K, got {rule!r}")
    return chosen[i - 1 :: k]


def _identity(split: Split, places: np.ndarray) -> str:
    """SHA-256 of the images that votes are of, with their names and labels."""
    digest = hashlib.sha256(str((split.images.shape[1:], split.white)).encode())
    for place in places:
        digest.update(np.array([split.idx[place], split.labels[place]], dtype="<i8"))
        digest.update(np.ascontiguousarray(split.images[place]))
    return digest.hexdigest()


def require_classes(header: Header, split: Split) -> None:
    """Refuse a classifier of other classes than those of the images.

    Raises:
        BackendError: It is.
    """
    if list(header.classes) != list(split.classes):
        raise BackendError(
            f"run {header.run} has {len(header.classes)} classes ({', '.join(header.classes[:3])}, "
            f"…), the data {len(split.classes)} ({', '.join(split.classes[:3])}, …)"
        )


def sample(
    backend: Backend,
    split: Split,
    header: Header,
    journal: Path,
    path: Path,
    *,
    workers: int,
    every: float = 5.0,
    reference: Backend | None = None,
) -> Iterator[Progress]:
    """Write the votes of the images of ``split`` to ``path``, going on from ``journal``.

    Yields the progress: first what the journal has, then whenever there is more.

    Args:
        backend: The function to certify.
        split: Images to certify.
        header: From `header`; says everything else.
        journal: Where votes are kept meanwhile; removed at the end.
        path: The votes file; written whole, at the end.
        workers: Threads.
        every: Seconds between two lines of an image that is still being drawn: what a kill costs.
        reference: The function that ``header.paired`` draws are compared with.

    Raises:
        VotesError: ``journal`` holds votes of another classifier or setting.
        BackendError: The classifier's classes are not those of ``split``, a score is NaN, or there
            is nothing to compare ``header.paired`` draws with.
    """
    require_classes(header, split)
    if header.paired and reference is None:
        raise BackendError(f"paired: {header.paired} draws need another function to compare with")
    places = subset(header.subset, len(split.idx), shard=header.shard)
    with Journal(journal, header) as kept:
        drawing = Drawing(split, header, kept, workers=workers, every=every)
        if header.paired:
            drawing.pairs(backend, reference, places)
        yield from drawing.votes(backend, places)
        rows = [kept.rows[int(split.idx[place])] for place in places]
    votes.write(path, header, rows)
    journal.unlink()
