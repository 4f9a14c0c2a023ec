"""Certificate of Lee et al. (2019), arXiv:1906.04948, and Yang et al. (2020), arXiv:2002.08118.

Of uniform noise: the L1 radius 2 lambda (p_A - 1/2).
"""

import math

from rrcm.certification.votes.counts import Certified, ImageVotes, Rule, conclude

READS = frozenset({"hits"})
NORM = "l1"  # of the radius
ROUNDING = 1e-11  # more than what the steps of the noise leave out


def certify(votes: ImageVotes, rule: Rule, *, sigma: float, alpha: float) -> Certified:
    r"""Certify one image from two independent rounds of votes under uniform noise.

    Guarantee: with probability at least ``1 - alpha`` over the second round, either this abstains
    or the smoothed classifier predicts ``label`` at every image of the pixel grid in the open L1
    ball of radius (theory.md, eq. 62)

    .. math:: R = 2 \lambda (\underline{p_A} - \tfrac12), \qquad \lambda = \sqrt3 \sigma.

    Arguments are those of `cohen.certify`.
    """
    q = rule.complement(votes.history(votes.c_A), alpha)
    radius = 2 * math.sqrt(3) * sigma * (0.5 - q) * (1 - ROUNDING)
    return conclude(votes, complement=q, radius=radius)
