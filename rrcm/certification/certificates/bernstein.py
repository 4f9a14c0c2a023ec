"""Certifies the classifier that averages probabilities instead of votes, by a Bernstein bound."""

from rrcm.certification.votes.bounds import bernstein_complement, radius
from rrcm.certification.votes.counts import SOFT, Certified, ImageVotes, Rule, conclude
from rrcm.core.errors import CertificateError

READS = frozenset({"soft votes"})


def certify(votes: ImageVotes, rule: Rule, *, sigma: float, alpha: float) -> Certified:
    r"""Certify one image: votes select the class, soft votes bound its mean probability.

    Guarantee: with probability at least ``1 - alpha`` over the second round, either this abstains
    or the **soft** smoothed classifier, which predicts the class of the largest mean of
    softmax(``sample.soft`` * scores) under noise, predicts ``label`` on the whole open L2 ball of
    radius (theory.md, eq. 22)

    .. math:: R = \sigma\, \Phi^{-1}(\underline{E[\mathrm{prob}_A]}).

    The mean has an empirical Bernstein bound (Maurer & Pontil, 2009, arXiv:0907.3740), and
    ``sigma * Phi^-1`` of it is 1-Lipschitz (Salman et al., 2019, arXiv:1906.04584). This is not the
    classifier that votes, and the two may differ. ``p_A`` is the bound of the mean.

    Args:
        votes: Must have ``soft`` over all n draws.
        rule: A rule with claims after n draws only; this abstains if it stopped before.
        sigma: Noise level of both rounds, in the units the radius is wanted in (pixels in [0, 1]).
        alpha: Failure probability.

    Raises:
        CertificateError: There are no soft votes, or sigma <= 0.
    """
    draws, hits = votes.history(votes.c_A)[-1]
    total, squares = votes.soft
    if hits > 0 and total == 0:  # a winning class has probability 1 / K or more
        raise CertificateError(
            f"certificate bernstein: image {votes.idx} has no soft votes; sample with them"
        )
    q = 1.0
    if draws == (n := rule.looks[-1]):
        q = bernstein_complement(total, squares, n, alpha, unit=SOFT)
    return conclude(votes, complement=q, radius=radius(q, sigma=sigma))


def require(rule: Rule, *, alpha: float, pairs: int) -> None:
    """Refuse rules with claims at several numbers of draws, and too few draws.

    Raises:
        CertificateError: Either is the case.
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
