"""When votes are looked at, and what stopping rules share."""

import math
from bisect import bisect_left
from functools import lru_cache

from scipy.special import ndtr
from scipy.stats import hypergeom

from rrcm.bounds import complement
from rrcm.errors import ConfigError
from rrcm.evidence import Claim, Evidence, History, Rule

R10 = (100, 125, 160, 200, 250, 315, 400, 500, 630, 800)  # preferred numbers, ISO 3
# Tables round radii down to a millionth: what a table shows must be certified by a bit more.
MARGIN = 2e-6


def ladder(n: int) -> tuple[int, ...]:
    """Ten looks to a decade from 100 draws on, all below n, and n itself."""
    steps = (10**decade * step for decade in range(len(str(n))) for step in R10)
    return (*(look for look in steps if look < n), n)


def target(radius: float, *, sigma: float) -> float:
    """The complement that shows as ``radius`` in a table: 1 - p for p = Phi(radius / sigma)."""
    return float(ndtr(-(radius + MARGIN) / sigma))


@lru_cache(maxsize=1 << 16)
def most_hits(hits: int, draws: int, end: int, beta: float) -> int:
    """The most hits among ``end`` draws that leave so few as ``hits`` in the first ``draws``.

    Guarantee: of images with any given number of hits among ``end`` draws, at most a share ``beta``
    is given a smaller number here, whatever p is (eq. 15b).
    """
    # Given its hits among all, any order of them is as likely: those so far are hypergeometric.
    candidates = range(hits, hits + end - draws + 1)
    too_many = bisect_left(
        candidates, True, key=lambda all_: hypergeom.cdf(hits, end, all_, draws) < beta
    )
    return candidates[too_many - 1]  # not 0: with no further hits, these are certain


def best_case(evidence: Evidence, end: int, *, beta: float, runner_up: bool) -> Evidence:
    """The best votes after ``end`` draws that are plausible given those so far.

    Guarantee: of images with any given votes among ``end`` draws, at most a share ``beta`` has so
    few for the chosen class, or, if ``runner_up`` counts, so many for another, that these are not
    at least as good (eq. 15c). ``beta`` is then divided among the classes.
    """
    draws, classes = evidence.draws[-1], evidence.votes.shape[1]
    hits, rival = int(evidence.votes[-1, evidence.c_A]), int(evidence.runner_up[-1])
    if not runner_up:
        most = most_hits(hits, draws, end, beta)
        return evidence.continued(end, hits=most, runner_up=end - most)
    most = most_hits(hits, draws, end, beta / 2)
    misses = most_hits(draws - rival, draws, end, beta / 2 / max(1, classes - 1))
    return evidence.continued(end, hits=most, runner_up=end - misses)


def within_reach(
    evidence: Evidence, rule: Rule, radius: float, *, beta: float, ends: tuple[int, ...] = ()
) -> bool:
    """Whether ``radius``, in pixels, may still be certified after n draws, or at a look before.

    Looks before n are asked, too, so that a rule that is laid out for fewer draws gives up no later
    than ``rule``: its votes are then among those of more draws, which can be cut
    (rrcm/analysis/truncation.py).

    Args:
        evidence: The votes so far.
        rule: Laid out for what is to be certified.
        radius: In pixels; 0 is any answer.
        beta: Of images that are certified there, the share that may be given up here.
        ends: Numbers of draws after which drawing might end; by default all looks of the rule.
    """
    claim, now = rule.claim, evidence.draws[-1]
    for end in reversed(ends or rule.looks):
        if end < now:
            return False
        last = type(rule)(rule.cfg, n=end, claim=claim)
        best = best_case(evidence, end, beta=beta, runner_up=claim.certificate.RUNNER_UP)
        if claim.radius(best, last) >= radius + MARGIN:
            return True
    return False


def at_the_end(history: History, n: int, alpha: float) -> float:
    """Clopper-Pearson after exactly n draws, and no claim, 1, after fewer (eq. 11)."""
    draws, hits = history[-1]
    return complement(hits, draws, alpha) if draws == n else 1.0


def require_class_votes(claim: Claim, *, rule: str) -> None:
    """Refuse to lay out a stopping rule for a certificate that class votes do not decide.

    Raises:
        ConfigError: Says which rule serves it.
    """
    if not claim.certificate.CLASS_VOTES:
        name = claim.certificate.__name__.rpartition(".")[2]
        raise ConfigError(
            f"stopping rule {rule} cannot be laid out for the certificate {name}, which class "
            "votes do not decide; use the rule none"
        )


def require_level(beta: float) -> None:
    """Refuse a ``beta`` that is no probability of error."""
    if not 0 < beta < 1:
        raise ConfigError(f"beta: must lie in (0, 1), got {beta}")


def require_radius(radius: float, *, key: str) -> None:
    """Refuse a radius that is negative, infinite or not a number."""
    if not 0 <= radius < math.inf:
        raise ConfigError(f"{key}: must be 0 or more pixels, got {radius}")
