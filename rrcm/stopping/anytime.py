"""Stop when going on could not enlarge the radius by much: any budget, one bound for all times.

The bound is the one-sided mixture's at full alpha (eq. 17), which holds at all looks together. At
n = 100,000 it costs unanimous votes 1 % of the radius that Clopper-Pearson would give.
"""

import math
from dataclasses import dataclass

from rrcm.bounds import mixture_complement
from rrcm.errors import ConfigError
from rrcm.evidence import Claim, Evidence, History
from rrcm.looks import MARGIN, ladder, require_class_votes, require_level, within_reach


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """``tolerance``, in pixels: how far a radius may be below that of n draws; and ``beta``.

    Of images that n draws would take further than that, each look may give up a share ``beta``.
    """

    tolerance: float
    beta: float

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < math.inf:
            raise ConfigError(f"tolerance: must be positive pixels, got {self.tolerance}")
        require_level(self.beta)


class Rule:
    """Compares the certified radius with the largest that is still within reach."""

    fixed = False

    def __init__(self, cfg: Config, *, n: int, claim: Claim) -> None:
        """Laid out for ``claim``, which class votes must decide."""
        require_class_votes(claim, rule="anytime")
        self.cfg, self.claim = cfg, claim
        self.looks = ladder(n)

    def stop(self, evidence: Evidence) -> str | None:
        """``certified`` once little is left to win, ``futile`` once no answer is within reach."""
        now = self.claim.radius(evidence, self)
        wanted = now + self.cfg.tolerance - MARGIN if now > 0 else 0.0
        if within_reach(evidence, self, wanted, beta=self.cfg.beta):
            return None
        return "certified" if now > 0 else "futile"

    def complement(self, history: History, alpha: float) -> float:
        """Upper bound of 1 - p: the least of all looks (eq. 17)."""
        return min(mixture_complement(hits, draws, alpha) for draws, hits in history)

    def settles(self, radius: float) -> bool:
        """None: every radius may be short by the tolerance."""
        return False

    def describe(self) -> str:
        """For people."""
        return (
            f"until {self.looks[-1]:,} draws would add less than {self.cfg.tolerance:g} to a radius"
        )
