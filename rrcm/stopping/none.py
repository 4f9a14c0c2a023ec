"""Never stop early: all n draws of every image, as Cohen et al. (2019), arXiv:1902.02918, do."""

from dataclasses import dataclass

from rrcm.evidence import Claim, Evidence, History
from rrcm.looks import at_the_end, ladder


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Nothing to choose."""


class Rule:
    """The bound is Clopper-Pearson's at n draws, full alpha (eq. 11)."""

    fixed = True

    def __init__(self, cfg: Config, *, n: int, claim: Claim) -> None:
        """Any claim: nothing depends on it."""
        self.cfg, self.claim = cfg, claim
        self.looks = ladder(n)

    def stop(self, evidence: Evidence) -> str | None:
        """Never."""
        return None

    def complement(self, history: History, alpha: float) -> float:
        """Upper bound of 1 - p; 1, which claims nothing, before n draws."""
        return at_the_end(history, self.looks[-1], alpha)

    def settles(self, radius: float) -> bool:
        """Every radius, for every certificate."""
        return True

    def describe(self) -> str:
        """For people."""
        return f"all {self.looks[-1]:,} draws of every image"
