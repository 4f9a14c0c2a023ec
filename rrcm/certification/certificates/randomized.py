"""Cohen's certificate with Stevens' randomized bound, which has error alpha exactly."""

from rrcm.certification.votes.bounds import radius, randomized_complement
from rrcm.certification.votes.counts import Certified, ImageVotes, Rule, best_complement, conclude
from rrcm.core.errors import CertificateError

READS = frozenset({"hits", "coin"})


def certify(votes: ImageVotes, rule: Rule, *, sigma: float, alpha: float, coin: float) -> Certified:
    """Certify one image from two independent rounds of noisy votes, and a coin.

    Guarantee: that of `cohen`, with probability at least ``1 - alpha`` over the second round and
    the coin (theory.md, eq. 21). It is the tightest bound on average, but the radius depends on the
    coin: toss it once, before the votes are known, and keep it.

    A coin below ``2 alpha`` counts as ``2 alpha``, which only lowers radii; otherwise unanimous
    votes would have an infinite radius.

    Args:
        votes: ``selection`` chooses the class; it must be independent of ``counts``.
        rule: A rule with claims after n draws only; this abstains if it stopped before.
        sigma: Noise level of both rounds, in the units the radius is wanted in (pixels in [0, 1]).
        alpha: Failure probability.
        coin: Uniform on (0, 1), independent of all votes.

    Raises:
        CertificateError: The coin is outside (0, 1), or sigma <= 0.
    """
    draws, hits = votes.history(votes.c_A)[-1]
    q = 1.0
    if draws == rule.looks[-1]:
        q = randomized_complement(hits, draws, alpha, max(coin, min(2 * alpha, 0.5)))
    return conclude(votes, complement=q, radius=radius(q, sigma=sigma))


def require(rule: Rule, *, alpha: float, pairs: int) -> None:
    """Refuse rules with claims at several numbers of draws, and too few draws.

    Raises:
        CertificateError: Either is the case.
    """
    if not rule.fixed:
        raise CertificateError(
            "certificate randomized: its bound holds after a fixed number of draws only; sample "
            "with the stopping rule none or futile"
        )
    best_complement(rule, alpha)
