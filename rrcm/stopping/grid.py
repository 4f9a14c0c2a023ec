"""Stop when all radii of a table are settled: certified, or out of reach.

Half of alpha pays for claims at any look, by a mixture martingale (eq. 16), and half is kept for
Clopper-Pearson after all n draws (eq. 18). Radii between those of the table are lower bounds of
what n draws would have certified.
"""

import math
from dataclasses import dataclass

from rrcm.bounds import complement, mixture_complement
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """``radii`` of the table, in pixels, and ``beta``.

    Of images that n draws would certify at a radius, each look may give up a share ``beta``.
    """

    radii: list[float]
    beta: float

    def __post_init__(self) -> None:
        if not self.radii:
            raise ConfigError("radii: must be one or more, got []")
        for radius in self.radii:
            require_radius(radius, key="radii")
        require_level(self.beta)


class Rule:
    """Goes on while a radius of the table is neither certified nor out of reach."""

    fixed = False

    def __init__(self, cfg: Config, *, n: int, claim: Claim) -> None:
        """Laid out for ``claim``, which class votes must decide."""
        require_class_votes(claim, rule="grid")
        self.cfg, self.claim = cfg, claim
        self.looks = ladder(n)

    def stop(self, evidence: Evidence) -> str | None:
        """``certified`` if all radii are settled and some certified, ``futile`` if none is."""
        reached = self.claim.radius(evidence, self)
        missing = [radius for radius in self.cfg.radii if reached < radius + MARGIN]
        # Where the least is out of reach, so are the others.
        if missing and within_reach(evidence, self, min(missing), beta=self.cfg.beta):
            return None
        return "certified" if len(missing) < len(self.cfg.radii) else "futile"

    def complement(self, history: History, alpha: float) -> float:
        """Upper bound of 1 - p: the least of all looks (eq. 18)."""
        n = self.looks[-1]
        # After n draws the mixture never gives less than Clopper-Pearson at the same level.
        return min(
            complement(hits, draws, alpha / 2)
            if draws == n
            else mixture_complement(hits, draws, alpha / 2)
            for draws, hits in history
        )

    def settles(self, radius: float) -> bool:
        """The radii of the table."""
        return any(math.isclose(radius, one, abs_tol=1e-12) for one in self.cfg.radii)

    def describe(self) -> str:
        """For people."""
        radii = ", ".join(f"{radius:g}" for radius in self.cfg.radii)
        return f"until the radii {radii} are decided; radii in between are lower bounds"
