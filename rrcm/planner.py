"""Planning under a budget of time: which image promises most certified accuracy for a draw.

A plan only orders the work. What is claimed in the end is claimed by a rule that holds whenever
drawing stops, so no plan can cost soundness.
"""

from rrcm.evidence import Evidence, Rule


def worth(evidence: Evidence, rule: Rule, *, radii: list[float] | None) -> float:
    """Expected gain for a draw of going on with an image, at the best of all later looks.

    The image's votes so far are extended as if its class and the runner-up kept their shares of
    them. Gain is the number of ``radii`` newly certified, or without them the growth of the radius
    in units of sigma. A share that is behind one half is worth nothing.
    """
    draws = evidence.draws[-1] if evidence.draws else 0
    hits, rival = (
        int(counts[-1]) if draws else 0
        for counts in (evidence.votes[:, evidence.c_A], evidence.runner_up)
    )
    selected = int(evidence.selection.sum())
    # The selection tells of p_A as well: a plan may be biased, a bound may not.
    share = (hits + int(evidence.selection.max()) + 0.5) / (draws + selected + 1)
    if share <= 0.5:
        return 0.0
    others = rival / (draws - hits) if hits < draws else 1.0  # of what the class does not get

    def value(seen: Evidence) -> float:
        reached = rule.claim.radius(seen, rule) if seen.draws else 0.0
        if radii is None:
            return reached / rule.claim.sigma
        return float(sum(reached >= r for r in radii if reached > 0))

    now, best = value(evidence), 0.0
    for look in rule.looks:
        if look > draws:
            more = round(share * (look - draws))
            rivals = rival + round(others * (look - draws - more))
            later = value(evidence.continued(look, hits=hits + more, runner_up=rivals))
            best = max(best, (later - now) / (look - draws))
    return best
