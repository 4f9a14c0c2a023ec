"""Cohen et al. (2019), arXiv:1902.02918, theorem 1 in full: the runner-up is bounded by its votes.

Also certifies classes of p_A < 1/2. Tables that other work made with one class are not comparable.
"""

from rrcm.bounds import radius
from rrcm.evidence import Certified, Evidence, Rule, best_complement, conclude

RUNNER_UP, CLASS_VOTES = True, True


def certify(
    evidence: Evidence, rule: Rule, *, sigma: float, alpha: float, coin: float
) -> Certified:
    r"""Certify one image by a lower bound of p_A and an upper bound of p_B, at alpha / 2 each.

    Guarantee: with probability at least ``1 - alpha`` over the second round, either this abstains
    or the smoothed classifier answers ``label`` on the whole open L2 ball of radius (theory.md,
    eq. 20)

    .. math:: R = \tfrac{\sigma}{2} (\Phi^{-1}(\underline{p_A}) - \Phi^{-1}(\overline{p_B})).

    The runner-up is whichever other class leads at a look, and yet no correction is due for the
    choice, over classes or over looks (Voráček, 2024, arXiv:2406.17830). Let B be the most probable
    other class, which is fixed. At each look B has no more votes than the runner-up; bounds of a
    rule never fall as votes of a look rise; so this one is at least that of B's own votes, which
    holds with probability ``1 - alpha / 2``, and p_B is at least that of any other class.

    Args:
        evidence: ``selection`` chooses the class; it must be independent of ``votes``.
        rule: When drawing stopped, and how votes then bound a probability.
        sigma: Noise level of both rounds, in the units the radius is wanted in (pixels in [0, 1]).
        alpha: Failure probability of both bounds together.
        coin: Not used.

    Raises:
        CertificateError: sigma <= 0.
    """
    others = (evidence.draws - evidence.runner_up).tolist()
    not_A = rule.complement(evidence.history(evidence.c_A), alpha / 2)
    p_B = rule.complement(list(zip(evidence.draws, others, strict=True)), alpha / 2)
    both = radius(not_A, sigma=sigma) + radius(p_B, sigma=sigma)
    return conclude(evidence, complement=not_A, radius=both / 2)


def require(rule: Rule, *, alpha: float, pairs: int) -> None:
    """Refuse so few draws that unanimous votes would abstain; pairs do not matter.

    Raises:
        CertificateError: They are.
    """
    best_complement(rule, alpha / 2)
