"""A stopping rule whose looks somebody watches."""

from collections.abc import Callable

from rrcm.certification.votes.counts import History, ImageVotes, Rule

Watch = Callable[[ImageVotes, float], None]  # the votes so far, and the radius certified by them


class Watched(Rule):
    """Does all as ``rule``, and first shows each look to ``watch``, whose error ends all."""

    def __init__(self, rule: Rule, watch: Watch) -> None:
        self.cfg, self.looks, self.claim = rule.cfg, rule.looks, rule.claim
        self.rule, self.watch = rule, watch

    def stop(self, votes: ImageVotes) -> str | None:
        """The decision of the rule."""
        self.watch(votes, self.claim.radius(votes, self.rule))
        return self.rule.stop(votes)

    def complement(self, history: History, alpha: float) -> float:
        """The bound of the rule."""
        return self.rule.complement(history, alpha)

    def settles(self, radius: float) -> bool:
        """As the rule."""
        return self.rule.settles(radius)

    def describe(self) -> str:
        """As the rule."""
        return self.rule.describe()
