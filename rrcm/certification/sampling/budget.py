"""Orders images under a time budget by their expected gain in certified radii per draw.

The order cannot affect soundness: the bounds of the stopping rule hold whenever sampling stops.
"""

from rrcm.certification.votes.counts import ImageVotes, Rule


def worth(votes: ImageVotes, rule: Rule, *, radii: list[float] | None) -> float:
    """Expected gain per draw of sampling an image further, up to the best later look.

    The votes are extrapolated with the present shares of class and runner-up. Gain is the number of
    ``radii`` newly certified, or without ``radii`` the growth of the radius in units of sigma; 0
    for a share of at most one half.
    """
    draws = votes.draws[-1] if votes.draws else 0
    hits, rival = (
        int(counts[-1]) if draws else 0 for counts in (votes.counts[:, votes.c_A], votes.runner_up)
    )
    selected = int(votes.selection.sum())
    # Includes the selection, which biases the share: harmless for an order of work.
    share = (hits + int(votes.selection.max()) + 0.5) / (draws + selected + 1)
    if share <= 0.5:
        return 0.0
    others = rival / (draws - hits) if hits < draws else 1.0  # the runner-up's share of the misses

    def value(seen: ImageVotes) -> float:
        reached = rule.claim.radius(seen, rule) if seen.draws else 0.0
        if radii is None:
            return reached / rule.claim.sigma
        return float(sum(reached >= r for r in radii if reached > 0))

    now, best = value(votes), 0.0
    for look in rule.looks:
        if look > draws:
            more = round(share * (look - draws))
            rivals = rival + round(others * (look - draws - more))
            later = value(votes.continued(look, hits=hits + more, runner_up=rivals))
            best = max(best, (later - now) / (look - draws))
    return best
