"""Certifies a classifier by votes of another that mostly agrees, such as its quantised form.

Ugare et al. (2024), "Incremental randomized smoothing certification", ICLR, arXiv:2305.19521.
"""

from rrcm.certification.votes.bounds import radius, upper_confidence_bound
from rrcm.certification.votes.counts import Certified, ImageVotes, Rule, best_complement, conclude
from rrcm.core.errors import CertificateError

READS = frozenset({"hits", "pairs"})


def certify(votes: ImageVotes, rule: Rule, *, sigma: float, alpha: float) -> Certified:
    r"""Certify the reference classifier of ``votes.paired`` by votes of the sampled one.

    Guarantee: with probability at least ``1 - alpha`` over all rounds, either this abstains or the
    smoothed **reference** classifier predicts ``label`` on the whole open L2 ball of radius
    (theory.md, eq. 23)

    .. math:: R = \sigma\, \Phi^{-1}(\underline{p_A} - \overline{\zeta}),

    where zeta is the probability under noise that the two classifiers disagree. Each bound has
    alpha / 2, whether or not their draws are the same. ``p_A`` is the difference.

    Args:
        votes: Must have ``paired``, with a number of inputs fixed in advance.
        rule: The stopping rule of the votes, which bounds the probability.
        sigma: Noise level of all rounds, in the units the radius is wanted in (pixels in [0, 1]).
        alpha: Failure probability of both bounds together.

    Raises:
        CertificateError: There are no pairs, or sigma <= 0.
    """
    disagreements, pairs = votes.paired
    if pairs == 0:
        raise CertificateError(
            f"certificate transfer: image {votes.idx} has no paired votes of another function; "
            "sample with them"
        )
    zeta = upper_confidence_bound(disagreements, pairs, alpha / 2)
    q = min(1.0, rule.complement(votes.history(votes.c_A), alpha / 2) + zeta)
    return conclude(votes, complement=q, radius=radius(q, sigma=sigma))


def require(rule: Rule, *, alpha: float, pairs: int) -> None:
    """Refuse too few draws or pairs for unanimous votes to certify anything.

    Raises:
        CertificateError: There are too few.
    """
    if pairs == 0:
        raise CertificateError(
            "certificate transfer: needs paired votes of another function; set sample.paired"
        )
    if _least(rule, pairs, alpha) >= 0.5:
        raise CertificateError(
            f"{rule.looks[-1]} votes and {pairs} pairs can never certify at alpha = {alpha}: all "
            "would abstain"
        )


def ceiling(rule: Rule, *, pairs: int, sigma: float, alpha: float) -> tuple[float, float]:
    """The largest radius that can be certified, with no disagreement, and zeta's bound then."""
    best = max(0.0, radius(_least(rule, pairs, alpha), sigma=sigma))
    return best, upper_confidence_bound(0, pairs, alpha / 2)


def _least(rule: Rule, pairs: int, alpha: float) -> float:
    return best_complement(rule, alpha / 2) + upper_confidence_bound(0, pairs, alpha / 2)
