"""Stop once each radius of a table is decided: certified, or out of reach.

Half of alpha is spent on claims at any look, by a mixture martingale (eq. 16), and half on
Clopper-Pearson after all n draws (eq. 18). Sampling stops once the table's radii are decided; radii
in between are lower bounds of what n draws would certify.
"""

from rrcm.certification.votes.bounds import complement, mixture_complement
from rrcm.certification.votes.counts import Claim, History, ImageVotes
from rrcm.certification.votes.sequential import MARGIN, OfTable, Table, is_futile, look_schedule

Config = Table


class Rule(OfTable):
    """Draws while a radius of the table is neither certified nor out of reach."""

    fixed = False
    nested = True

    def __init__(self, cfg: Config, *, n: int, claim: Claim) -> None:
        """For at most ``n`` draws and any ``claim``."""
        self.cfg, self.claim = cfg, claim
        self.looks = look_schedule(n)

    def stop(self, votes: ImageVotes) -> str | None:
        """``certified`` if all radii are decided and one is certified, ``futile`` if none is."""
        reached = self.claim.radius(votes, self)
        missing = [radius for radius in self.cfg.radii if reached < radius + MARGIN]
        # If the smallest is out of reach, so are the others.
        if missing and not is_futile(votes, self, min(missing), beta=self.cfg.beta):
            return None
        return "certified" if len(missing) < len(self.cfg.radii) else "futile"

    def complement(self, history: History, alpha: float) -> float:
        """Upper bound of 1 - p: the smallest over all looks (eq. 18)."""
        n = self.looks[-1]
        # After n draws Clopper-Pearson is never worse than the mixture at the same level.
        return min(
            complement(hits, draws, alpha / 2)
            if draws == n
            else mixture_complement(hits, draws, alpha / 2)
            for draws, hits in history
        )
