"""Defines votes, and finds those on disk: all of a definition, or those of some of its images."""

import dataclasses
import hashlib
import math
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rrcm.certification.sampling.sampler import subset
from rrcm.certification.votes import reach, records
from rrcm.certification.votes.records import BUDGET, Header, Row
from rrcm.config.certification import Sampling
from rrcm.core import locks, registry
from rrcm.core.errors import BackendError, ConfigError, VotesError
from rrcm.core.files import write_text
from rrcm.core.schema import listed
from rrcm.data.splits.shards import Split
from rrcm.inference.backend import Backend


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of votes, named by a digest of their definition; ``others`` are further files."""

    folder: Path
    others: tuple[Path, ...] = ()

    def path(self, header: Header, ending: str = ".jsonl") -> Path:
        """The votes of ``header``, or a file beside them with another ``ending``."""
        return self.folder / f"{records.digest(header)}{ending}"

    def files(self) -> list[Path]:
        """All files that may have votes."""
        return [*self.others, *sorted(self.folder.glob("*.jsonl"))]

    def find(self, header: Header) -> Path | None:
        """The file of the votes that ``header`` defines, if there is one.

        Raises:
            VotesError: It is damaged.
        """
        paths = (*self.others, self.path(header))
        return next((p for p in paths if p.exists() and records.definition(p) == header), None)

    def seed(self, header: Header, split: Split) -> int:
        """An unpredictable seed, drawn once for these images and this request.

        Votes of the same images that this request may reuse lend it their seed, as when only labels
        differ. Votes of other images lend none: those were added with the seed in view.
        """
        path = self.path(dataclasses.replace(header, seed=0, shard="1/1"), ".seed")
        if not path.exists():
            with locks.alone(path.with_suffix(".seed-lock"), "a seed", say=lambda _: None):
                if not path.exists():  # another process may have drawn it
                    write_text(path, f"{self._seed(header, split)}\n")
        return int(path.read_text())

    def _seed(self, header: Header, split: Split) -> int:
        for path, earlier in definitions(self.files()):
            if (earlier.subset, earlier.images) == (header.subset, header.images):
                if reusable([path], dataclasses.replace(header, seed=earlier.seed), split):
                    return earlier.seed
        return secrets.randbits(64)


def header(
    backend: Backend,
    split: Split,
    run: str,
    cfg: Sampling,
    *,
    shard: str = "1/1",
    budget: float = 0.0,
) -> Header:
    """The header of votes of ``split``, with noise at the sigma that ``backend`` classifies at.

    Radii that neither ``cfg`` nor the rule states become those of `reach.usual`.

    Raises:
        ConfigError: ``shard`` is not i/k, or the rule makes no claim when a ``budget`` ends it.
        BackendError: The classes of ``backend`` differ from those of ``split``.
    """
    if list(backend.classes) != list(split.classes):
        raise BackendError(
            f"run {run} has {len(backend.classes)} classes ({', '.join(backend.classes[:3])}, …), "
            f"the data {len(split.classes)} ({', '.join(split.classes[:3])}, …)"
        )
    i, slash, k = shard.partition("/")
    if not (slash and i.isdecimal() and k.isdecimal() and 1 <= int(i) <= int(k)):
        raise ConfigError(f"shard: expected i/k with 1 <= i <= k, such as 1/4, got {shard!r}")
    if budget:
        require_any_look(cfg.stop, key="budget")
    places = subset(cfg.subset, len(split.idx))
    component, pixels = registry.load("distributions", cfg.noise), math.prod(split.images.shape[1:])
    stopping = registry.load("stopping", cfg.stop).DEFAULTS | cfg.stopping
    made = Header(
        **(dataclasses.asdict(cfg) | {"split": split.name, "stopping": stopping}),
        format=records.FORMAT,
        stream=records.stream(component.NAME, split.name),
        slack=component.slack(backend.sigma, pixels=pixels, max_value=split.max_value),
        run=run,
        weights=backend.weights,
        sigma=backend.sigma,
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
    if registry.load("stopping", stop).Rule.fixed:
        names = registry.names("stopping")
        able = [name for name in names if not registry.load("stopping", name).Rule.fixed]
        raise ConfigError(
            f"{key}: rule {stop!r} certifies nothing before its end; use one of {listed(able)}"
        )


def definitions(paths: Iterable[Path]) -> Iterator[tuple[Path, Header]]:
    """Files of votes, finished or not, with their headers; damaged ones are passed over."""
    for path in paths:
        with suppress(VotesError):
            yield path, records.definition(path)


def identity(split: Split, chosen: str) -> str:
    """SHA-256 of the images of the subset ``chosen``, with their indices and labels."""
    places = subset(chosen, len(split.idx))
    digest = hashlib.sha256(str((split.images.shape[1:], split.max_value)).encode())
    for place in places:
        digest.update(np.array([split.idx[place], split.labels[place]], dtype="<i8").data)
        digest.update(np.ascontiguousarray(split.images[place]).data)
    return digest.hexdigest()


def are_of_these(header: Header, rows: Iterable[Row], split: Split) -> bool:
    """Whether all ``rows`` of ``header`` are of images of ``split``, whatever labels it has.

    The digest in the header is computed again with the labels of the rows.
    """
    labels = dict(zip(split.idx.tolist(), split.labels.tolist(), strict=True))
    labels |= {row.idx: row.label for row in rows}
    then = np.array([labels[idx] for idx in split.idx.tolist()], dtype=split.labels.dtype)
    return header.pixels == identity(dataclasses.replace(split, labels=then), header.subset)


def rows_of_these(path: Path, split: Split) -> list[Row]:
    """The rows of finished votes on images of ``split``; none of other images, or if damaged."""
    with suppress(VotesError, ConfigError):
        header, rows = records.read(path)
        if are_of_these(header, rows, split):
            return rows
    return []


def reusable(files: Iterable[Path], header: Header, split: Split) -> dict[int, Row]:
    """Rows of images that ``header`` asks for, from finished votes that differ in nothing else.

    Guarantee: the votes that sampling would draw, under the condition that `drawing` states for
    restarts: all that they depend on is the same, and the images are those of ``split``. Rows have
    the labels of ``split``. Images for which the time ran out are drawn again, but not those of a
    share of the same votes.

    ``files`` may be any, also damaged ones. Passed over are those that ``header`` defines, or the
    whole of which it is a share: who asks for them again wants them drawn again.
    """
    rows: dict[int, Row] = {}
    for path, earlier in definitions(files):
        differs = {*earlier.differing(header)}
        share = differs == {"shard"}
        if differs and differs <= header.aside and not (share and earlier.shard == "1/1"):
            found = rows_of_these(path, split)
            rows |= {row.idx: row for row in found if share or row.stop != BUDGET}
    places = subset(header.subset, len(split.idx), shard=header.shard)
    return {
        idx: dataclasses.replace(rows[idx], label=label)
        for idx, label in zip(
            split.idx[places].tolist(), split.labels[places].tolist(), strict=True
        )
        if idx in rows
    }
