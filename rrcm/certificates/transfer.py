"""Votes of one function certify another that mostly agrees with it, such as the unquantised one.

Ugare et al. (2024), "Incremental randomized smoothing certification", ICLR, arXiv:2305.19521.
"""

from rrcm.bounds import radius, upper_confidence_bound
from rrcm.errors import CertificateError
from rrcm.evidence import Certified, Evidence, Rule, best_complement, conclude

RUNNER_UP, CLASS_VOTES = False, True


def certify(
    evidence: Evidence, rule: Rule, *, sigma: float, alpha: float, coin: float
) -> Certified:
    r"""Certify the other function of ``evidence.paired`` from the votes of the one that was drawn.

    Guarantee: with probability at least ``1 - alpha`` over all rounds, either this abstains or the
    smoothed classifier of the **other** function answers ``label`` on the whole open L2 ball of
    radius (theory.md, eq. 23)

    .. math:: R = \sigma\, \Phi^{-1}(\underline{p_A} - \overline{\zeta}),

    where zeta is the probability under noise that the two functions disagree. Each bound has
    alpha / 2, whether or not their draws are the same. ``p_A`` is the difference.

    Args:
        evidence: Must have ``paired``, of a number of inputs that was fixed before.
        rule: When drawing stopped, and how votes then bound a probability.
        sigma: Noise level of all rounds, in the units the radius is wanted in (pixels in [0, 1]).
        alpha: Failure probability of both bounds together.
        coin: Not used.

    Raises:
        CertificateError: There are no pairs, or sigma <= 0.
    """
    disagreements, pairs = evidence.paired
    if pairs == 0:
        raise CertificateError(
            f"certificate transfer: image {evidence.idx} has no paired votes of another function; "
            "sample with them"
        )
    zeta = upper_confidence_bound(disagreements, pairs, alpha / 2)
    q = min(1.0, rule.complement(evidence.history(evidence.c_A), alpha / 2) + zeta)
    return conclude(evidence, complement=q, radius=radius(q, sigma=sigma))


def require(rule: Rule, *, alpha: float, pairs: int) -> None:
    """Refuse numbers of draws and pairs with which unanimous votes would abstain.

    Raises:
        CertificateError: They are, or there are no pairs.
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


def ceiling(rule: Rule, *, pairs: int, sigma: float, alpha: float) -> str:
    """What no luck can exceed with this many pairs and draws, as a sentence for people."""
    best = max(0.0, radius(_least(rule, pairs, alpha), sigma=sigma))
    zeta = upper_confidence_bound(0, pairs, alpha / 2)
    return (
        f"With {pairs} pairs and {rule.looks[-1]} votes no radius above {best:.6f} can be "
        f"certified, even if no pair disagrees: {pairs} pairs cannot tell a share of {zeta:.2g} "
        "from none."
    )


def _least(rule: Rule, pairs: int, alpha: float) -> float:
    return best_complement(rule, alpha / 2) + upper_confidence_bound(0, pairs, alpha / 2)
