"""Soft votes: the certificate of the classifier that averages probabilities, not votes."""

from rrcm.bounds import bernstein_complement, radius
from rrcm.errors import CertificateError
from rrcm.evidence import SOFT, Certified, Evidence, Rule, conclude

RUNNER_UP, CLASS_VOTES = False, False


def certify(
    evidence: Evidence, rule: Rule, *, sigma: float, alpha: float, coin: float
) -> Certified:
    r"""Certify one image from votes that choose a class and probabilities that bound its mean.

    Guarantee: with probability at least ``1 - alpha`` over the second round, either this abstains
    or the **soft** smoothed classifier, which answers the class of the largest mean probability
    under noise, softmax of ``sample.soft`` times the scores, answers ``label`` on the whole open L2
    ball of radius (theory.md, eq. 22)

    .. math:: R = \sigma\, \Phi^{-1}(\underline{E[\mathrm{prob}_A]}).

    The mean has an empirical Bernstein bound (Maurer & Pontil, 2009, arXiv:0907.3740), and
    ``sigma * Phi^-1`` of it is 1-Lipschitz (Salman et al., 2019, arXiv:1906.04584). This is not the
    classifier that votes, and the two may answer differently. ``p_A`` is the bound of the mean.

    Args:
        evidence: Must have ``soft``, of all n draws.
        rule: One that makes its claims after n draws only. Where it stopped before, this abstains.
        sigma: Noise level of both rounds, in the units the radius is wanted in (pixels in [0, 1]).
        alpha: Failure probability.
        coin: Not used.

    Raises:
        CertificateError: There are no soft votes, or sigma <= 0.
    """
    draws, hits = evidence.history(evidence.c_A)[-1]
    total, squares = evidence.soft
    if hits > 0 and total == 0:  # who wins a vote has a probability of at least one in K
        raise CertificateError(
            f"certificate bernstein: image {evidence.idx} has no soft votes; sample with them"
        )
    q = 1.0
    if draws == (n := rule.looks[-1]):
        q = bernstein_complement(total, squares, n, alpha, unit=SOFT)
    return conclude(evidence, complement=q, radius=radius(q, sigma=sigma))


def require(rule: Rule, *, alpha: float, pairs: int) -> None:
    """Refuse rules that make claims at several numbers of draws, and too few draws.

    Raises:
        CertificateError: The rule does, or no outcome of n draws certifies anything.
    """
    if not rule.fixed:
        raise CertificateError(
            "certificate bernstein: its bound holds after a fixed number of draws only; sample "
            "with the stopping rule none"
        )
    n = rule.looks[-1]
    if bernstein_complement(n * SOFT, n * SOFT**2, n, alpha, unit=SOFT) >= 0.5:
        raise CertificateError(
            f"{n} soft votes can never certify at alpha = {alpha}: all would abstain"
        )
