"""Samples noisy votes of a base classifier, the only costly step of certification.

Guarantee: the noise of a draw is a function of (seed, split, image, draw); all batches have one
shape and run on one thread each. So votes do not depend on the order of images, restarts, shares or
the number of workers, if the scores of a row do not depend on the other rows of its batch
(`session.is_batch_invariant` says so where they do, before a command or a stage draws).
"""

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from rrcm.certification.sampling.journal import Journal
from rrcm.certification.sampling.sampler import SamplingProgress, VoteSampler, subset
from rrcm.certification.votes import reach, records
from rrcm.certification.votes.records import BUDGET, Header, Row
from rrcm.config.certification import Sampling
from rrcm.core import registry
from rrcm.core.errors import BackendError, ConfigError, VotesError
from rrcm.core.schema import listed
from rrcm.data.splits.shards import Split
from rrcm.inference.backend import Backend


def header(
    backend: Backend,
    split: Split,
    run: str,
    cfg: Sampling,
    stopping: dict[str, Any],
    *,
    shard: str = "1/1",
    budget: float = 0.0,
) -> Header:
    """The header of votes of ``split``, with noise at the sigma that ``backend`` classifies at.

    ``stopping`` are the constants of the rule; radii of None become those of `reach.usual`.

    Raises:
        ConfigError: ``shard`` is not i/k, or the rule makes no claim when a ``budget`` ends it.
    """
    i, slash, k = shard.partition("/")
    if not (slash and i.isdecimal() and k.isdecimal() and 1 <= int(i) <= int(k)):
        raise ConfigError(f"shard: expected i/k with 1 <= i <= k, such as 1/4, got {shard!r}")
    if budget:
        require_any_look(cfg.stop, key="budget")
    places = subset(cfg.subset, len(split.idx))
    component, pixels = registry.load("distributions", cfg.noise), math.prod(split.images.shape[1:])
    made = Header(
        **(dataclasses.asdict(cfg) | {"split": split.name}),
        format=records.FORMAT,
        stream=records.stream(component.NAME, split.name),
        slack=component.slack(backend.sigma, pixels=pixels, max_value=split.max_value),
        run=run,
        weights=backend.weights,
        sigma=backend.sigma,
        stopping=stopping,
        budget=budget,
        provider=backend.provider,
        images=len(places),
        pixels=identity(split, cfg.subset),
        shard=f"{int(i)}/{int(k)}",
        classes=list(backend.classes),
    )
    return reach.named(made)


def require_any_look(stop: str, *, key: str) -> None:
    """Refuse a rule that certifies nothing if drawing is cut short, as by a budget of time.

    Raises:
        ConfigError: It certifies at its end only; ``key`` is what cuts it short.
    """
    registry.require("stopping", stop)
    names = registry.names("stopping")
    able = [name for name in names if not registry.load("stopping", name).Rule.fixed]
    if stop not in able:
        raise ConfigError(
            f"{key}: rule {stop!r} certifies nothing before its end; use one of {listed(able)}"
        )


def identity(split: Split, chosen: str) -> str:
    """SHA-256 of the images of the subset ``chosen``, with their indices and labels."""
    places = subset(chosen, len(split.idx))
    digest = hashlib.sha256(str((split.images.shape[1:], split.max_value)).encode())
    for place in places:
        digest.update(np.array([split.idx[place], split.labels[place]], dtype="<i8").data)
        digest.update(np.ascontiguousarray(split.images[place]).data)
    return digest.hexdigest()


def rows_of_these(path: Path, split: Split) -> list[Row]:
    """The rows of finished votes on images of ``split``, whatever labels it had then.

    No rows if they are of other images: the digest in the header is computed again with the labels
    of the rows.

    Raises:
        VotesError: The file is missing, unfinished or damaged.
        ConfigError: Its ``subset`` is not valid.
    """
    header, rows = records.read(path)
    return rows if are_of_these(header, rows, split) else []


def are_of_these(header: Header, rows: Iterable[Row], split: Split) -> bool:
    """Whether all ``rows`` of ``header`` are of images of ``split``, whatever labels it has."""
    labels = dict(zip(split.idx.tolist(), split.labels.tolist(), strict=True))
    labels |= {row.idx: row.label for row in rows}
    then = np.array([labels[idx] for idx in split.idx.tolist()], dtype=split.labels.dtype)
    return header.pixels == identity(dataclasses.replace(split, labels=then), header.subset)


def reusable(earlier: Iterable[Path], header: Header, split: Split) -> dict[int, Row]:
    """Rows of images that ``header`` asks for, from finished votes that differ in nothing else.

    Guarantee: the votes that sampling would draw, under the condition stated above for restarts:
    all that they depend on is the same, and the images are those of ``split``. They do not depend
    on the ``subset``, on labels, or on ``alpha``, where all n draws are made of every image. Rows
    have the labels of ``split``.

    Args:
        earlier: Files that may have such votes, shares of the same images among them. Others are
            passed over, also damaged ones, and those that ``header`` defines, or the whole of which
            it is a share: who asks for them again wants them drawn again.
        header: From `header`.
        split: The images.
    """
    places = subset(header.subset, len(split.idx), shard=header.shard)
    labels = dict(zip(split.idx[places].tolist(), split.labels[places].tolist(), strict=True))
    rows: dict[int, Row] = {}
    for path in earlier:
        with suppress(VotesError, ConfigError):
            if _differs_in_images_alone(records.definition(path), header):
                rows |= {row.idx: row for row in rows_of_these(path, split)}
    return {
        idx: dataclasses.replace(rows[idx], label=label)
        for idx, label in labels.items()
        if idx in rows and rows[idx].stop != BUDGET
    }


def _differs_in_images_alone(earlier: Header, header: Header) -> bool:
    """Whether votes differ from those of ``header`` in nothing that votes of an image depend on."""
    of_its_images = dataclasses.replace(
        header,
        subset=earlier.subset,
        shard=earlier.shard,
        images=earlier.images,
        pixels=earlier.pixels,
        alpha=earlier.alpha if header.stop == "none" else header.alpha,
    )
    whole = dataclasses.replace(header, shard="1/1")
    return earlier == of_its_images and earlier not in (header, whole)


def require_classes(header: Header, split: Split) -> None:
    """Refuse a classifier whose classes differ from those of the data.

    Raises:
        BackendError: They differ.
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
    budget_start: float | None = None,
    others: Sequence[Backend] = (),
    known: Iterable[Row] = (),
) -> Iterator[SamplingProgress]:
    """Write the votes of the images of ``split`` to ``path``, resuming from ``journal``.

    Yields the progress, first that restored from the journal.

    Args:
        backend: The function to certify.
        split: Images to certify.
        header: From `header`; has all other settings.
        journal: The journal file; removed at the end.
        path: The votes file; written whole, at the end.
        workers: Number of threads of each device.
        every: Seconds between journal lines of an unfinished image; a kill loses at most these.
        budget_start: When the budget of ``header`` began, of `time.monotonic`; by default with the
            draws.
        others: The same function on further devices, with which it shares the draws.
        known: Finished rows, from `reusable`, whose images are not drawn.

    Raises:
        VotesError: ``journal`` has votes of another classifier or setting.
        ConfigError: The budget was spent before the first draw.
        BackendError: The classes differ from those of ``split``, or a score is NaN.
    """
    require_classes(header, split)
    with Journal(journal, header) as kept:
        kept.complete(known)
        sampler = VoteSampler(
            split, header, kept, workers=workers, every=every, budget_start=budget_start
        )
        yield from sampler.draw_votes([backend, *others])
        rows = [kept.rows[int(split.idx[place])] for place in sampler.places]
    records.write(path, header, rows)
    journal.unlink()
