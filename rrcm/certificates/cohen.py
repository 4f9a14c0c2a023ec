"""The certificate of Cohen et al. (2019), arXiv:1902.02918: votes to a radius, in float64.

Symbols are the paper's: c_A the class, n_A its votes among n, p_A a lower bound of its probability.
"""

from rrcm.bounds import radius
from rrcm.evidence import Certified, Evidence, Rule, best_complement, conclude

RUNNER_UP, CLASS_VOTES = False, True


def certify(
    evidence: Evidence, rule: Rule, *, sigma: float, alpha: float, coin: float
) -> Certified:
    r"""Certify one image from two independent rounds of noisy votes.

    Guarantee: with probability at least ``1 - alpha`` over the second round, either this abstains
    or the smoothed classifier answers ``label`` on the whole open L2 ball of radius (theory.md,
    eq. 12)

    .. math:: R = \sigma\, \Phi^{-1}(\underline{p_A}).

    Args:
        evidence: ``selection`` chooses the class; it must be independent of ``votes``, which bound
            its probability.
        rule: When drawing stopped, and how votes then bound a probability.
        sigma: Noise level of both rounds, in the units the radius is wanted in (pixels in [0, 1]).
        alpha: Failure probability.
        coin: Not used.

    Raises:
        CertificateError: sigma <= 0.
    """
    q = rule.complement(evidence.history(evidence.c_A), alpha)
    return conclude(evidence, complement=q, radius=radius(q, sigma=sigma))


def require(rule: Rule, *, alpha: float, pairs: int) -> None:
    """Refuse so few draws that unanimous votes would abstain; pairs do not matter.

    Raises:
        CertificateError: They are.
    """
    best_complement(rule, alpha)
