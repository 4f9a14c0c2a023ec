"""Stop when further draws could not enlarge the radius by much; valid at any stopping time.

One confidence sequence at full alpha, the one-sided mixture's (eq. 17), holds at all looks. At
n = 100,000 and unanimous votes its radius is 1 % below Clopper-Pearson's.
"""

from dataclasses import dataclass

from rrcm.certification.votes import counts
from rrcm.certification.votes.bounds import mixture_complement
from rrcm.certification.votes.counts import History, ImageVotes
from rrcm.certification.votes.sequential import MARGIN, is_futile
from rrcm.core.ranges import inside, positive

DEFAULTS = {"tolerance": 0.1, "beta": 1e-3}


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """``tolerance``, in units of sigma: how far a radius may be below that of n draws.

    ``beta`` is the probability that a look stops an image whose radius would have grown by more.
    """

    tolerance: float
    beta: float

    def __post_init__(self) -> None:
        positive(self, "tolerance")
        inside("beta", self.beta)


class Rule(counts.Rule):
    """Compares the certified radius with the largest that n draws may plausibly certify."""

    def stop(self, votes: ImageVotes) -> str | None:
        """``certified`` if the radius can hardly grow further, ``futile`` if there is none."""
        now = self.claim.radius(votes, self)
        tolerance = self.cfg.tolerance * self.claim.sigma
        wanted = now + tolerance - MARGIN if now > 0 else 0.0
        if not is_futile(votes, self, wanted, beta=self.cfg.beta):
            return None
        return "certified" if now > 0 else "futile"

    def complement(self, history: History, alpha: float) -> float:
        """Upper bound of 1 - p: the smallest over all looks (eq. 17)."""
        return min(mixture_complement(hits, draws, alpha) for draws, hits in history)

    def settles(self, radius: float) -> bool:
        """False: every radius may be short by the tolerance."""
        return False

    def describe(self) -> str:
        """A sentence for reports."""
        return (
            f"until {self.looks[-1]:,} draws would add less than "
            f"{self.cfg.tolerance * self.claim.sigma:g} to a radius ({self.cfg.tolerance:g} sigma)"
        )
