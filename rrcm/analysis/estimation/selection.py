"""The best of several classifiers on the images that chose it, and what is left of it on others."""

from dataclasses import dataclass

import numpy as np

from rrcm.certification.votes import bounds

HALVES = 2000  # random halves, over which results are averaged
BATCH = 500  # halves at a time, which bounds the memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """The classifier ``index`` with the largest mean, the first of several, and that ``mean``.

    ``elsewhere`` is the mean, on one half of the images, of the classifier that is best on the
    other half (eq. 64); ``there`` is its mean on the half that chose it.
    """

    index: int
    mean: float
    there: float
    elsewhere: float

    @property
    def excess(self) -> float:
        """By how much the mean of the best is too high for the images that chose it."""
        return self.mean - self.elsewhere


def best(values: np.ndarray, *, halves: int = HALVES, seed: int = 0) -> Best:
    """Choose among ``values`` [M classifiers, N images], and look at what was chosen on others.

    Guarantee: for images that are drawn independently, ``elsewhere`` is an unbiased estimate of the
    expected value, on a new image, of the classifier that N/2 images choose. Of classifiers that
    tie, each is as likely to be chosen.

    Raises:
        ValueError: There are fewer than two images, so that none are left to look at.
    """
    images = values.shape[1]
    if images < 2:
        raise ValueError(f"two images at least, one to choose by and one to look at; got {images}")
    rng, half, sums = np.random.default_rng(seed), images // 2, values.sum(axis=1)
    there, elsewhere = [], []
    for start in range(0, halves, BATCH):
        order = rng.random((min(BATCH, halves - start), images)).argsort(axis=1)
        chosen = values @ (order < half).T.astype(values.dtype)  # [M, halves]
        first = np.isclose(chosen, chosen.max(axis=0), rtol=0, atol=1e-9)
        rest = (first * (sums[:, None] - chosen)).sum(axis=0) / first.sum(axis=0)
        there += [*chosen.max(axis=0) / half]
        elsewhere += [*rest / (images - half)]
    return Best(
        index=int(sums.argmax()),
        mean=float(sums.max() / images),
        there=float(np.mean(there)),
        elsewhere=float(np.mean(elsewhere)),
    )


def least(hits: int, images: int, *, tried: int, confidence: float) -> float:
    """The least share of a classifier that was chosen among ``tried`` ones (eq. 65).

    Guarantee: whichever was chosen on these images and however, its share on new images is below
    this with probability at most 1 - ``confidence``.
    """
    return 1 - bounds.complement(hits, images, (1 - confidence) / tried)
