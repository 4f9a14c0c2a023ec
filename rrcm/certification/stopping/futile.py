"""Stop images that n draws would hardly certify; draw all n of the others.

Looking costs no alpha: the only claim is Clopper-Pearson's after exactly n draws, which is false
with probability at most alpha if nothing stops, and stopping only removes claims.
"""

from dataclasses import dataclass

from rrcm.certification.votes.counts import Claim, History, ImageVotes
from rrcm.certification.votes.sequential import (
    clopper_pearson_at_n,
    is_futile,
    look_schedule,
    require_class_votes,
    require_level,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """``beta``: probability that a look gives up an image that n draws would certify."""

    beta: float

    def __post_init__(self) -> None:
        require_level(self.beta)


class Rule:
    """Stops for futility: n draws will hardly certify any radius (eq. 15b)."""

    fixed = True
    any_look = False
    nested = True

    def __init__(self, cfg: Config, *, n: int, claim: Claim) -> None:
        """For at most ``n`` draws; the certificate of ``claim`` must rest on class votes."""
        require_class_votes(claim, rule="futile")
        self.cfg, self.claim = cfg, claim
        self.looks = look_schedule(n)

    def stop(self, votes: ImageVotes) -> str | None:
        """``futile`` if no look can plausibly certify any radius."""
        return "futile" if is_futile(votes, self, 0.0, beta=self.cfg.beta) else None

    def complement(self, history: History, alpha: float) -> float:
        """Upper bound of 1 - p; 1, no claim, before n draws."""
        return clopper_pearson_at_n(history, self.looks[-1], alpha)

    def settles(self, radius: float) -> bool:
        """True for every radius: certified images have all n draws."""
        return True

    def describe(self) -> str:
        """A sentence for reports."""
        return f"all {self.looks[-1]:,} draws, fewer where no certificate is within reach"
