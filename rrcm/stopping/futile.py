"""Stop where nothing can be certified any more; all that is certified has all n draws.

The full alpha is kept, however often one looks. The only claim that is ever made is that of
Clopper-Pearson after exactly n draws. It would be false with probability at most alpha if nothing
stopped; stopping only takes claims away.
"""

from dataclasses import dataclass

from rrcm.evidence import Claim, Evidence, History
from rrcm.looks import at_the_end, ladder, require_class_votes, require_level, within_reach


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """``beta``: of images that n draws would certify, the share that each look may give up."""

    beta: float

    def __post_init__(self) -> None:
        require_level(self.beta)


class Rule:
    """Gives up where n draws will hardly certify any radius (eq. 15b)."""

    fixed = True

    def __init__(self, cfg: Config, *, n: int, claim: Claim) -> None:
        """Laid out for ``claim``, which class votes must decide."""
        require_class_votes(claim, rule="futile")
        self.cfg, self.claim = cfg, claim
        self.looks = ladder(n)

    def stop(self, evidence: Evidence) -> str | None:
        """``futile`` where no answer is within reach."""
        return None if within_reach(evidence, self, 0.0, beta=self.cfg.beta) else "futile"

    def complement(self, history: History, alpha: float) -> float:
        """Upper bound of 1 - p; 1, which claims nothing, before n draws."""
        return at_the_end(history, self.looks[-1], alpha)

    def settles(self, radius: float) -> bool:
        """Every radius: what is certified has all draws."""
        return True

    def describe(self) -> str:
        """For people."""
        return f"all {self.looks[-1]:,} draws, fewer where no answer is within reach"
