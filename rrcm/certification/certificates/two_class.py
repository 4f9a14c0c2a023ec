"""Certificate of Cohen et al. (2019), arXiv:1902.02918, theorem 1 with a bound of the runner-up.

It can certify classes with p_A < 1/2. Published tables use the bound of p_A alone and are not
comparable.
"""

from rrcm.certification.votes.bounds import radius
from rrcm.certification.votes.counts import Certified, ImageVotes, Rule, at_most, conclude

READS = frozenset({"hits", "runner-up"})


def certify(votes: ImageVotes, rule: Rule, *, sigma: float, alpha: float) -> Certified:
    r"""Certify one image by a lower bound of p_A and an upper bound of p_B, at alpha / 2 each.

    Guarantee: with probability at least ``1 - alpha`` over the second round, either this abstains
    or the smoothed classifier predicts ``label`` on the whole open L2 ball of radius (theory.md,
    eq. 20)

    .. math:: R = \tfrac{\sigma}{2} (\Phi^{-1}(\underline{p_A}) - \Phi^{-1}(\overline{p_B})).

    The runner-up is whichever other class leads at a look, but no correction for this choice is
    needed (Voráček, 2024, arXiv:2406.17830). Let B be the most probable other class, which is
    fixed. At each look B has at most the votes of the runner-up, and bounds are non-decreasing in
    votes. So this bound is at least that of B's own votes, which exceeds p_B, and with it the
    probability of every other class, with probability ``1 - alpha / 2``.

    Arguments and errors are those of `cohen.certify`; ``alpha`` is that of both bounds together.
    """
    not_A = rule.complement(votes.history(votes.c_A), alpha / 2)
    p_B = at_most(rule, votes, votes.runner_up, alpha / 2)
    both = radius(not_A, sigma=sigma) + radius(p_B, sigma=sigma)
    return conclude(votes, complement=not_A, radius=both / 2)
