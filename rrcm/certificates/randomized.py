"""Cohen's certificate with Stevens' bound: exactly alpha, by a coin that is thrown per image."""

from rrcm.bounds import radius, randomized_complement
from rrcm.errors import CertificateError
from rrcm.evidence import Certified, Evidence, Rule, best_complement, conclude

RUNNER_UP, CLASS_VOTES = False, True


def certify(
    evidence: Evidence, rule: Rule, *, sigma: float, alpha: float, coin: float
) -> Certified:
    """Certify one image from two independent rounds of noisy votes, and a coin.

    Guarantee: that of `cohen`, with probability at least ``1 - alpha`` over the second round and
    the coin (theory.md, eq. 21). No bound of votes is closer on average, but the radius depends on
    luck a little: throw the coin once, before the votes are known, and keep it.

    A coin below ``2 alpha`` counts as ``2 alpha``, which only lowers radii: those of unanimous
    votes would have no end.

    Args:
        evidence: ``selection`` chooses the class; it must be independent of ``votes``.
        rule: One that makes its claims after n draws only. Where it stopped before, this abstains.
        sigma: Noise level of both rounds, in the units the radius is wanted in (pixels in [0, 1]).
        alpha: Failure probability.
        coin: Uniform on (0, 1), independent of all votes.

    Raises:
        CertificateError: The coin is outside (0, 1), or sigma <= 0.
    """
    draws, hits = evidence.history(evidence.c_A)[-1]
    q = 1.0
    if draws == rule.looks[-1]:
        q = randomized_complement(hits, draws, alpha, max(coin, min(2 * alpha, 0.5)))
    return conclude(evidence, complement=q, radius=radius(q, sigma=sigma))


def require(rule: Rule, *, alpha: float, pairs: int) -> None:
    """Refuse rules that make claims at several numbers of draws, and too few draws.

    Raises:
        CertificateError: The rule does, or unanimous votes would abstain.
    """
    if not rule.fixed:
        raise CertificateError(
            "certificate randomized: its bound holds after a fixed number of draws only; sample "
            "with the stopping rule none or futile"
        )
    best_complement(rule, alpha)
