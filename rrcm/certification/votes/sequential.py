"""Group-sequential stopping: the schedule of looks, and the futility bound that all rules share."""

import math
from bisect import bisect_left
from functools import lru_cache

from scipy.special import ndtr
from scipy.stats import hypergeom

from rrcm.certification.votes.bounds import complement
from rrcm.certification.votes.counts import Claim, History, ImageVotes, Rule
from rrcm.core.errors import ConfigError

R10 = (100, 125, 160, 200, 250, 315, 400, 500, 630, 800)  # preferred numbers, ISO 3
# Pixels. Tables round radii down to a millionth, so a rule certifies a little more than it shows.
MARGIN = 2e-6


def look_schedule(n: int) -> tuple[int, ...]:
    """Numbers of draws at which a rule may stop: ten per decade from 100, all below n, then n."""
    steps = (10**decade * step for decade in range(len(str(n))) for step in R10)
    return (*(look for look in steps if look < n), n)


def efficacy_bound(radius: float, *, sigma: float) -> float:
    """The largest bound of 1 - p that certifies ``radius``: 1 - Phi((radius + MARGIN) / sigma)."""
    return float(ndtr(-(radius + MARGIN) / sigma))


@lru_cache(maxsize=1 << 16)
def futility_bound(hits: int, draws: int, end: int, beta: float) -> int:
    """The most hits among ``end`` draws that are plausible after ``hits`` in the first ``draws``.

    Guarantee: an image that has more hits than this after ``end`` draws has at most ``hits`` in the
    first ``draws`` with probability below ``beta``, whatever p is (eq. 15b).
    """
    # All orders are equally likely, so hits among the first draws are hypergeometric given all.
    candidates = range(hits, hits + end - draws + 1)
    too_many = bisect_left(
        candidates, True, key=lambda all_: hypergeom.cdf(hits, end, all_, draws) < beta
    )
    return candidates[too_many - 1]  # at least the first: with no further hits, it has cdf 1


def best_case(votes: ImageVotes, end: int, *, beta: float, runner_up: bool) -> ImageVotes:
    """The most favourable votes after ``end`` draws that are plausible given those so far.

    Guarantee: for an image with any given votes after ``end`` draws, the probability that this is
    less favourable than those is at most ``beta`` (eq. 15c). If the ``runner_up`` enters the
    certificate, its votes are bounded from below too, and ``beta`` is divided among the classes.
    """
    draws, classes = votes.draws[-1], votes.counts.shape[1]
    hits, rival = int(votes.counts[-1, votes.c_A]), int(votes.runner_up[-1])
    if not runner_up:
        most = futility_bound(hits, draws, end, beta)
        return votes.continued(end, hits=most, runner_up=end - most)
    most = futility_bound(hits, draws, end, beta / 2)
    misses = futility_bound(draws - rival, draws, end, beta / 2 / max(1, classes - 1))
    return votes.continued(end, hits=most, runner_up=end - misses)


def is_futile(
    votes: ImageVotes, rule: Rule, radius: float, *, beta: float, ends: tuple[int, ...] = ()
) -> bool:
    """Whether no later look can plausibly certify ``radius``.

    Looks before n are examined too, so that a rule with fewer draws gives up no later than ``rule``
    does: votes of n draws can then be truncated to those of fewer
    (rrcm/analysis/estimation/truncation.py).

    Args:
        votes: The votes so far.
        rule: The stopping rule, with the certificate, alpha and sigma that it serves.
        radius: In pixels; 0 stands for any answer but abstention.
        beta: Probability with which an image that n draws would certify may be given up here.
        ends: Numbers of draws after which drawing may end; by default all looks of the rule.
    """
    claim, now = rule.claim, votes.draws[-1]
    for end in reversed(ends or rule.looks):
        if end < now:
            return True
        last = type(rule)(rule.cfg, n=end, claim=claim)
        best = best_case(votes, end, beta=beta, runner_up=claim.certificate.RUNNER_UP)
        if claim.radius(best, last) >= radius + MARGIN:
            return False
    return True


def clopper_pearson_at_n(history: History, n: int, alpha: float) -> float:
    """Clopper-Pearson bound of 1 - p after exactly n draws; 1, no claim, after fewer (eq. 11)."""
    draws, hits = history[-1]
    return complement(hits, draws, alpha) if draws == n else 1.0


def require_class_votes(claim: Claim, *, rule: str) -> None:
    """Refuse a certificate that does not rest on class votes, which decide when the rule stops.

    Raises:
        ConfigError: It does not; names the rule that can be used instead.
    """
    if not claim.certificate.CLASS_VOTES:
        name = claim.certificate.__name__.rpartition(".")[2]
        raise ConfigError(
            f"stopping rule {rule} does not go with the certificate {name}, which does not rest on "
            "class votes; use the rule none"
        )


def require_level(beta: float) -> None:
    """Refuse a ``beta`` outside (0, 1)."""
    if not 0 < beta < 1:
        raise ConfigError(f"beta: must lie in (0, 1), got {beta}")


def require_radius(radius: float, *, key: str) -> None:
    """Refuse a radius that is negative, infinite or not a number."""
    if not 0 <= radius < math.inf:
        raise ConfigError(f"{key}: must be 0 or more pixels, got {radius}")
