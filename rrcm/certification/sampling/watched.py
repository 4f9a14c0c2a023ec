"""A stopping rule whose looks somebody watches."""

from collections.abc import Callable

from rrcm.certification.votes.counts import ImageVotes, Rule

Watch = Callable[[ImageVotes, float], None]  # the votes so far, and the radius certified by them


class Watched(Rule):
    """Decides as ``rule`` does, and first shows each look to ``watch``, whose error ends all."""

    def __init__(self, rule: Rule, watch: Watch) -> None:
        self.cfg, self.looks, self.claim = rule.cfg, rule.looks, rule.claim
        self.rule, self.watch = rule, watch

    def stop(self, votes: ImageVotes) -> str | None:
        """The decision of the rule."""
        self.watch(votes, self.claim.radius(votes, self.rule))
        return self.rule.stop(votes)
