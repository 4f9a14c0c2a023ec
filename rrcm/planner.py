"""Planning under a budget of time: which image promises most certified accuracy for a draw.

A plan only orders the work. What is claimed in the end is claimed by a rule that holds whenever
drawing stops, so no plan can cost soundness.
"""

import math

from rrcm.bounds import radius
from rrcm.evidence import Evidence, Rule


def worth(
    evidence: Evidence, rule: Rule, *, sigma: float, alpha: float, radii: list[float] | None
) -> float:
    """Expected gain for a draw of going on with an image, at the best of all later looks.

    The image's votes so far are extended as if its class kept its share of them. Gain is the
    number of ``radii`` newly certified, or without them the growth of the radius in units of sigma.
    A share that is behind one half is worth nothing.
    """
    seen = evidence.history(evidence.c_A)
    draws, hits = seen[-1] if seen else (0, 0)
    selected = int(evidence.selection.sum())
    # The selection tells of p_A as well: a plan may be biased, a bound may not.
    share = (hits + int(evidence.selection.max()) + 0.5) / (draws + selected + 1)
    if share <= 0.5:
        return 0.0

    def value(history: list[tuple[int, int]]) -> float:
        reached = radius(rule.complement(history, alpha), sigma=sigma) if history else -math.inf
        if radii is None:
            return max(0.0, reached / sigma)
        return float(sum(max(reached, 0.0) >= r for r in radii if reached > 0))

    now, best = value(seen), 0.0
    for look in rule.looks:
        if look > draws:
            later = value([*seen, (look, hits + round(share * (look - draws)))])
            best = max(best, (later - now) / (look - draws))
    return best
