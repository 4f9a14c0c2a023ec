"""Stop once each radius of a table is decided: certified, or out of reach.

Half of alpha is spent on claims at any look, by a mixture martingale (eq. 16), and half on
Clopper-Pearson after all n draws (eq. 18). Sampling stops once the table's radii are decided; radii
in between are lower bounds of what n draws would certify.
"""

from rrcm.certification.votes.bounds import complement, mixture_complement
from rrcm.certification.votes.counts import History, ImageVotes
from rrcm.certification.votes.sequential import OfTable, Table, is_futile

Config = Table
DEFAULTS = {"radii": None, "beta": 5e-4}


class Rule(OfTable):
    """Draws while a radius of the table is neither certified nor out of reach."""

    def gives_up(self, radius: float, votes: ImageVotes) -> bool:
        """Whether no later look can plausibly certify ``radius``."""
        return is_futile(votes, self, radius, beta=self.cfg.beta)

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
