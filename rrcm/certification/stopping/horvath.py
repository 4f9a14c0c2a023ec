"""Horvath et al. (2022), arXiv:2106.06946: decide one radius in stages that share alpha equally."""

from dataclasses import dataclass
from itertools import pairwise
from math import isclose

from rrcm.certification.votes.bounds import complement
from rrcm.certification.votes.counts import Claim, History, ImageVotes
from rrcm.certification.votes.sequential import (
    MARGIN,
    is_futile,
    look_schedule,
    require_class_votes,
    require_level,
    require_radius,
)
from rrcm.core.errors import ConfigError
from rrcm.core.schema import shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """``stages``: numbers of draws of all stages but the last, n; ``radius`` to decide, in pixels.

    ``beta`` is the probability that a stage gives up an image that n draws would certify at that
    radius.
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
    """Clopper-Pearson at alpha / s in each of s stages (eq. 19); other looks are not used."""

    fixed = False
    any_look = False
    nested = True

    def __init__(self, cfg: Config, *, n: int, claim: Claim) -> None:
        """For at most ``n`` draws; the certificate of ``claim`` must rest on class votes.

        Raises:
            ConfigError: A stage is n or later.
        """
        require_class_votes(claim, rule="horvath")
        if cfg.stages[-1] >= n:
            raise ConfigError(f"stages: must be below n = {n}, got {cfg.stages}")
        self.cfg, self.claim = cfg, claim
        self.stages = (*cfg.stages, n)
        self.looks = tuple(sorted({*look_schedule(n), *cfg.stages}))
        self.ends = tuple(look for look in self.looks if look > cfg.stages[-1])

    def stop(self, votes: ImageVotes) -> str | None:
        """``certified`` or ``futile``, at a stage that decides the radius."""
        if votes.draws[-1] not in self.stages:
            return None
        radius, beta = self.cfg.radius, self.cfg.beta / len(self.cfg.stages)
        if self.claim.radius(votes, self) >= radius + MARGIN:
            return "certified"
        futile = is_futile(votes, self, radius, beta=beta, ends=self.ends)
        return "futile" if futile else None

    def complement(self, history: History, alpha: float) -> float:
        """Upper bound of 1 - p: the smallest over the stages reached, 1 before the first."""
        level = alpha / len(self.stages)
        return min(
            (complement(hits, draws, level) for draws, hits in history if draws in self.stages),
            default=1.0,
        )

    def settles(self, radius: float) -> bool:
        """True for the radius of the rule."""
        return isclose(radius, self.cfg.radius, abs_tol=1e-12)

    def describe(self) -> str:
        """A sentence for reports."""
        radius = f"{self.cfg.radius:g}"
        return f"until the radius {radius} is decided; other radii are lower bounds"
