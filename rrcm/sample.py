"""Sampling: noisy votes of a base classifier, the only costly step of certification.

Guarantee: the noise of a draw depends on (seed, image, draw) alone, every batch has one fixed shape
and starts at a multiple of it, and each batch is computed on one thread. So votes do not depend on
the order of images, on restarts or on the number of workers.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rrcm import noise, votes
from rrcm.config import Sample
from rrcm.errors import BackendError, ConfigError
from rrcm.shards import Split
from rrcm.votes import Header, Row


class Backend(Protocol):
    """What the certifier sees of a classifier; see rrcm/backends/."""

    classes: list[str]
    weights: str
    provider: str

    def scores(self, x: Tensor, sigma: float) -> Tensor:
        """Scores [B, K] of noisy pixels [B, C, H, W] on the CPU, computed on this thread."""


def header(backend: Backend, name: str, run: str, sigma: float, cfg: Sample) -> Header:
    """The definition of the votes that `sample` will write."""
    return Header(
        format=votes.FORMAT,
        noise=votes.NOISE,
        run=run,
        weights=backend.weights,
        sigma=sigma,
        n0=cfg.n0,
        n=cfg.n,
        seed=cfg.seed,
        backend=name,
        provider=backend.provider,
        precision=cfg.precision,
        batch_size=cfg.batch_size,
        subset=cfg.subset,
        classes=list(backend.classes),
    )


def subset(rule: str, images: int) -> np.ndarray:
    """Positions in a split that a rule selects: ``all``, ``every:K`` or ``first:K``."""
    kind, _, number = rule.partition(":")
    if rule == "all":
        return np.arange(images)
    if kind in ("every", "first") and number.isdecimal() and int(number) > 0:
        return (
            np.arange(0, images, int(number))
            if kind == "every"
            else np.arange(images)[: int(number)]
        )
    raise ConfigError(f"sample.subset: expected all, every:K or first:K, got {rule!r}")


def sample(
    make_backend: Callable[[], Backend],
    split: Split,
    header: Header,
    path: Path,
    *,
    workers: int,
) -> Iterator[int]:
    """Write votes of the images of ``split`` to ``path``, resuming what is there.

    Yields the number of images done, first those found in ``path``, then after each image.

    Args:
        make_backend: Called once per worker.
        split: Images to certify.
        header: From `header`; says everything else.
        path: The votes file.
        workers: Threads, each computing whole images.

    Raises:
        VotesError: ``path`` holds votes of another classifier or setting.
        BackendError: The classifier's classes are not those of ``split``, or a score is NaN.
    """
    if list(header.classes) != list(split.classes):
        raise BackendError(
            f"run {header.run} has {len(header.classes)} classes ({', '.join(header.classes[:3])}, "
            f"…), the data {len(split.classes)} ({', '.join(split.classes[:3])}, …)"
        )
    done = votes.resume(path, header)
    todo = [row for row in subset(header.subset, len(split.idx)) if split.idx[row] not in done]
    free: SimpleQueue[Backend] = SimpleQueue()
    for _ in range(min(workers, max(1, len(todo)))):
        free.put(make_backend())

    def one(row: int) -> Row:
        backend = free.get()
        try:
            x, idx = torch.from_numpy(split.pixels(row)), int(split.idx[row])
            n0, n = vote(backend, x, idx, header)
            return Row(
                idx=idx, label=int(split.labels[row]), n0=votes.sparse(n0), n=votes.sparse(n)
            )
        finally:
            free.put(backend)

    yield len(done)
    with ThreadPoolExecutor(workers) as pool:
        try:
            # map() keeps the order of the images, whichever worker is first
            for count, _ in enumerate(votes.append(path, header, pool.map(one, todo)), start=1):
                yield len(done) + count
        finally:
            pool.shutdown(cancel_futures=True)


def vote(backend: Backend, x: Tensor, idx: int, header: Header) -> tuple[np.ndarray, np.ndarray]:
    """Counts per class, [K] each, of ``n0`` selection and ``n`` estimation draws on one image.

    Draws 0 .. n0-1 select, n0 .. n0+n-1 estimate. The last batch is filled with draws that are not
    counted.
    """
    total, size, labels = header.n0 + header.n, header.batch_size, []
    for first in range(0, total, size):
        draws = torch.arange(first, first + size)
        z = noise.gaussian(header.seed, torch.full_like(draws, idx), draws, tuple(x.shape))
        scores = backend.scores(x + header.sigma * z, header.sigma)
        if bool(scores.isnan().any()):
            raise BackendError(
                f"run {header.run}: NaN scores for image {idx} at sigma {header.sigma}; the "
                "exported weights or the runtime are broken"
            )
        labels.append(scores.argmax(dim=1).numpy())  # the lowest class among equals
    drawn = np.concatenate(labels)[:total]
    n0, n = (
        np.bincount(part, minlength=len(header.classes))
        for part in (drawn[: header.n0], drawn[header.n0 :])
    )
    return n0, n
