"""Never stop early: all n draws of every image, as Cohen et al. (2019), arXiv:1902.02918, do."""

from dataclasses import dataclass

from rrcm.certification.votes import counts
from rrcm.certification.votes.bounds import complement
from rrcm.certification.votes.counts import History, ImageVotes

DEFAULTS: dict[str, float] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """No constants."""


class Rule(counts.Rule):
    """The Clopper-Pearson bound at n draws with the full alpha (eq. 11)."""

    fixed = True

    def stop(self, votes: ImageVotes) -> str | None:
        """None: no image stops early."""
        return None

    def complement(self, history: History, alpha: float) -> float:
        """Upper bound of 1 - p; 1, no claim, before n draws."""
        draws, hits = history[-1]
        return complement(hits, draws, alpha) if draws == self.looks[-1] else 1.0

    def settles(self, radius: float) -> bool:
        """True for every radius and certificate."""
        return True

    def describe(self) -> str:
        """A sentence for reports."""
        return f"all {self.looks[-1]:,} draws of every image"
