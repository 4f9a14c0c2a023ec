"""Horvath et al. (2022), arXiv:2106.06946: a few stages, alpha in equal parts, for one radius."""

from dataclasses import dataclass
from itertools import pairwise
from math import isclose

from rrcm.bounds import complement
from rrcm.errors import ConfigError
from rrcm.evidence import Claim, Evidence, History
from rrcm.looks import (
    MARGIN,
    ladder,
    require_class_votes,
    require_level,
    require_radius,
    within_reach,
)
from rrcm.parsing import shown


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
            raise ConfigError(f"stages: must be positive and ascend, got {shown(self.stages)}")
        require_radius(self.radius, key="radius")
        require_level(self.beta)


class Rule:
    """Clopper-Pearson at alpha / s in each of s stages (eq. 19); other looks do not count."""

    fixed = False

    def __init__(self, cfg: Config, *, n: int, claim: Claim) -> None:
        """Laid out for ``claim``, which class votes must decide.

        Raises:
            ConfigError: A stage is n or later.
        """
        require_class_votes(claim, rule="horvath")
        if cfg.stages[-1] >= n:
            raise ConfigError(f"stages: must be below n = {n}, got {cfg.stages}")
        self.cfg, self.claim = cfg, claim
        self.stages = (*cfg.stages, n)
        self.looks = tuple(sorted({*ladder(n), *cfg.stages}))
        self.ends = tuple(look for look in self.looks if look > cfg.stages[-1])

    def stop(self, evidence: Evidence) -> str | None:
        """``certified`` or ``futile``, at a stage that settles it."""
        if evidence.draws[-1] not in self.stages:
            return None
        radius, beta = self.cfg.radius, self.cfg.beta / len(self.cfg.stages)
        if self.claim.radius(evidence, self) >= radius + MARGIN:
            return "certified"
        reachable = within_reach(evidence, self, radius, beta=beta, ends=self.ends)
        return None if reachable else "futile"

    def complement(self, history: History, alpha: float) -> float:
        """Upper bound of 1 - p: the least of the stages that were reached, 1 before the first."""
        level = alpha / len(self.stages)
        return min(
            (complement(hits, draws, level) for draws, hits in history if draws in self.stages),
            default=1.0,
        )

    def settles(self, radius: float) -> bool:
        """Its own radius."""
        return isclose(radius, self.cfg.radius, abs_tol=1e-12)

    def describe(self) -> str:
        """For people."""
        radius = f"{self.cfg.radius:g}"
        return f"until the radius {radius} is decided; other radii are lower bounds"
