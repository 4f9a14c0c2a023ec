"""Horvath et al. (2022), arXiv:2106.06946: a few stages, alpha in equal parts, for one radius."""

from dataclasses import dataclass
from itertools import pairwise

from rrcm.bounds import complement
from rrcm.errors import ConfigError
from rrcm.evidence import History
from rrcm.looks import hopeless, ladder, needs, require_level, require_radius, target


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """``stages`` before the last, which is n; the ``radius`` wanted, in pixels; and ``beta``.

    ``beta``: of images that n draws would certify at it, the share that all stages may give up.
    """

    stages: list[int]
    radius: float
    beta: float

    def __post_init__(self) -> None:
        ascend = all(a < b for a, b in pairwise([0, *self.stages]))
        if not (self.stages and ascend):
            raise ConfigError(f"stages: must be positive and ascend, got {self.stages}")
        require_radius(self.radius, key="radius")
        require_level(self.beta)


class Rule:
    """Clopper-Pearson at alpha / s in each of s stages (eq. 19); other looks do not count."""

    fixed = False

    def __init__(self, cfg: Config, *, n: int, alpha: float, sigma: float) -> None:
        """Thresholds are those of ``alpha`` and noise ``sigma``, in pixels.

        Raises:
            ConfigError: A stage is n or later.
        """
        if cfg.stages[-1] >= n:
            raise ConfigError(f"stages: must be below n = {n}, got {cfg.stages}")
        self.stages = (*cfg.stages, n)
        self.looks = tuple(sorted({*ladder(n), *cfg.stages}))
        s, q = len(self.stages), target(cfg.radius, sigma=sigma)
        self.beta = cfg.beta / (s - 1)
        shown = needs(self.looks, q, alpha=alpha / s)
        self.certain = {t: shown[t] for t in self.stages}
        self.needed = {t: k for t, k in shown.items() if t > cfg.stages[-1]}

    def stop(self, history: History) -> str | None:
        """``certified`` or ``futile``, at a stage that settles it."""
        draws, hits = history[-1]
        if draws not in self.stages:
            return None
        if hits >= self.certain[draws]:
            return "certified"
        return "futile" if hopeless(draws, hits, self.needed, self.beta) else None

    def complement(self, history: History, alpha: float) -> float:
        """Upper bound of 1 - p: the least of the stages that were reached, 1 before the first."""
        level = alpha / len(self.stages)
        return min(
            (complement(hits, draws, level) for draws, hits in history if draws in self.stages),
            default=1.0,
        )
