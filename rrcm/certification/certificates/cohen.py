"""Certificate of Cohen et al. (2019), arXiv:1902.02918: the radius sigma Phi^-1(p_A).

Symbols are the paper's: c_A the class, n_A its votes among n, p_A a lower bound of its probability.
"""

from rrcm.certification.votes.bounds import radius
from rrcm.certification.votes.counts import Certified, ImageVotes, Rule, conclude

READS = frozenset({"hits"})


def certify(votes: ImageVotes, rule: Rule, *, sigma: float, alpha: float) -> Certified:
    r"""Certify one image from two independent rounds of noisy votes.

    Guarantee: with probability at least ``1 - alpha`` over the second round, either this abstains
    or the smoothed classifier predicts ``label`` on the whole open L2 ball of radius (theory.md,
    eq. 12)

    .. math:: R = \sigma\, \Phi^{-1}(\underline{p_A}).

    Assumes that the network, the image, sigma, n and alpha were fixed before the draws, that the
    noise is Gaussian and unknown to whoever made the image (theory.md, "What is certified").

    Args:
        votes: ``selection`` chooses the class; it must be independent of ``counts``, which bound
            its probability.
        rule: The stopping rule of the votes, which bounds the probability.
        sigma: Noise level of both rounds, in the units the radius is wanted in (pixels in [0, 1]).
        alpha: Failure probability.

    Raises:
        CertificateError: sigma <= 0.
    """
    q = rule.complement(votes.history(votes.c_A), alpha)
    return conclude(votes, complement=q, radius=radius(q, sigma=sigma))
