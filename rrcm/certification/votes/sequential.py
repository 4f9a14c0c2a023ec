"""Group-sequential stopping: what rules share, and looks and futility without boundaries."""

import math
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import hypergeom

from rrcm.certification.votes.counts import Claim, ImageVotes, Rule
from rrcm.core.errors import ConfigError
from rrcm.core.ranges import inside

# Pixels. Tables round radii down to a millionth, so a rule certifies a little more than it shows.
MARGIN = 2e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Constants of a rule that stops once each of the ``radii`` of a table, in pixels, is decided.

    ``beta`` is the probability that an image that the last look would certify is given up before.
    """

    radii: list[float]
    beta: float

    def __post_init__(self) -> None:
        if not self.radii:
            raise ConfigError("radii: must be one or more, got []")
        for radius in self.radii:
            if not 0 <= radius < math.inf:
                raise ConfigError(f"radii: must be 0 or more pixels, got {radius}")
        inside("beta", self.beta)


class OfTable(Rule):
    """What rules that decide the radii of a `Table` share."""

    cfg: Table
    claim: Claim

    def stop(self, votes: ImageVotes) -> str | None:
        """``certified`` if all radii are decided and one is certified, ``futile`` if none is."""
        reached = self.claim.radius(votes, self)
        missing = [radius for radius in self.cfg.radii if reached < radius + MARGIN]
        # If the smallest is out of reach, so are the others.
        if missing and not self.gives_up(min(missing), votes):
            return None
        return "certified" if len(missing) < len(self.cfg.radii) else "futile"

    @abstractmethod
    def gives_up(self, radius: float, votes: ImageVotes) -> bool:
        """Whether ``radius`` in pixels, which ``votes`` do not certify, is out of reach."""

    def settles(self, radius: float) -> bool:
        """True for the radii of the table."""
        return any(math.isclose(radius, one, abs_tol=1e-12) for one in self.cfg.radii)

    def describe(self) -> str:
        """A sentence for reports."""
        radii = ", ".join(f"{radius:g}" for radius in sorted(self.cfg.radii))
        return f"until the radii {radii} are decided; radii in between are lower bounds"


def efficacy_bound(radius: float, *, sigma: float) -> float:
    """The largest bound of 1 - p that certifies ``radius``: 1 - Phi((radius + MARGIN) / sigma)."""
    return float(ndtr(-(radius + MARGIN) / sigma))


@lru_cache(maxsize=1 << 16)
def futility_bound(hits: int, draws: int, end: int, beta: float) -> int:
    """The most hits among ``end`` draws that are plausible after ``hits`` in the first ``draws``.

    Guarantee: an image that has more hits than this after ``end`` draws has at most ``hits`` in the
    first ``draws`` with probability below ``beta``, whatever p is (eq. 15b).
    """
    further = end - draws
    # The upper confidence bound of p, narrower by what is drawn already.
    p = (hits + 1) / (draws + 2)
    likely = end * p - float(ndtri(beta)) * end * math.sqrt(p * (1 - p) * further / draws / end)
    too_many = _first(
        lambda more: _so_few(hits, draws, hits + more, end) < beta,
        guess=round(likely) - hits,
        end=further,
    )
    return hits + too_many - 1  # at least the first: with no further hits, it has cdf 1


@lru_cache(maxsize=1 << 16)
def most_in_vain(draws: int, end: int, needed: int, beta: float) -> int:
    """The most hits in the first ``draws`` after which ``needed`` among ``end`` are implausible.

    `futility_bound` solved for its hits: it is below ``needed`` for these and all fewer. -1: it
    never is.
    """
    if needed > end:
        return draws
    p = needed / end
    spread = math.sqrt(draws * p * (1 - p) * (end - draws) / end)
    plausible = _first(
        lambda hits: _so_few(hits, draws, needed, end) >= beta,
        guess=round(draws * p + float(ndtri(beta)) * spread),
        end=draws,
    )
    return plausible - 1


@lru_cache(maxsize=1 << 14)
def fewest_hits(rule: Rule, end: int, radius: float) -> int:
    """The fewest hits among ``end`` draws that certify ``radius`` there, ``end`` + 1 if none do.

    For certificates that depend on hits alone; votes before ``end`` are not used.
    """
    claim, last = rule.claim, type(rule)(rule.cfg, n=end, claim=rule.claim)

    def certified(hits: int) -> bool:
        votes = ImageVotes(
            idx=0, selection=np.array([1, 0]), draws=(end,), counts=np.array([[hits, end - hits]])
        )
        return claim.radius(votes, last) >= radius + MARGIN

    return bisect_left(range(end + 1), True, key=certified)


def _so_few(hits: int, draws: int, hits_in_all: int, end: int) -> float:
    """The probability of at most ``hits`` in the first ``draws`` of ``end``, given those in all."""
    # All orders are equally likely, so hits among the first draws are hypergeometric given all.
    return float(hypergeom.cdf(hits, end, hits_in_all, draws))


def _first(holds: Callable[[int], bool], *, guess: int, end: int) -> int:
    """The first of 0, ..., ``end`` for which ``holds``, which then stays so; else ``end`` + 1."""
    low, high, step = 0, end + 1, 1
    at = min(max(guess, 0), end)
    while low < high:
        low, high, next_ = (low, at, at - step) if holds(at) else (at + 1, high, at + step)
        at, step = next_ if low <= next_ < high else (low + high) // 2, 2 * step
    return low


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


def is_futile(votes: ImageVotes, rule: Rule, radius: float, *, beta: float) -> bool:
    """Whether no later look can plausibly certify ``radius``.

    It is in pixels, and not certified by the ``votes`` so far; 0 stands for any answer. ``beta`` is
    the probability with which an image that n draws would certify may be given up here.

    Looks before n are examined too, so that a rule with fewer draws gives up no later than ``rule``
    does: votes of n draws can then be truncated to those of fewer
    (rrcm/certification/truncation.py).
    """
    claim, now = rule.claim, votes.draws[-1]
    later = [end for end in reversed(rule.looks) if end >= now]
    if claim.certificate.READS == {"hits"} and rule.settles(radius):
        # The same for every image, so it is computed once for all.
        hits = int(votes.counts[-1, votes.c_A])
        return all(
            hits <= most_in_vain(now, end, fewest_hits(rule, end, radius), beta) for end in later
        )
    for end in later:
        last = type(rule)(rule.cfg, n=end, claim=claim)
        best = best_case(votes, end, beta=beta, runner_up="runner-up" in claim.certificate.READS)
        if claim.radius(best, last) >= radius + MARGIN:
            return False
    return True
