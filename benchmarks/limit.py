r"""The least draws that any test needs, beside those of stopping rules, for the images of a table.

``python -m benchmarks.limit VOTES ...`` takes the share of the chosen class among all draws of the
second round of an image as its p. Draws of a rule and images that it certifies are exact: the
distribution of misses is followed from look to look. *Lost* are the images that `none` would have
certified at a radius and the rule does not, where they are most, of as many as the table has.
Images are *near* a radius if n draws leave it to chance whether they are certified there; of the
others, *easy* ones are certified at all radii that n draws can certify, *hopeless* ones at none,
and the rest is *between* two radii.

The limit: let ``p0`` be the probability that certifies a radius. Let a rule certify images of
``p0`` with probability at most alpha, and images of any larger p with at least the probability
``w(p)`` that the last look of the first rule has by itself, less its beta. If it certifies images
of p with probability a, then for every other p' (Wald, 1945; here as the data-processing inequality
for the relative entropy of Bernoulli variables)

.. math:: E_p[N] \ge \mathrm{kl}(a, a') / \mathrm{kl}(p, p'),

where a' is the probability at p': at most alpha at ``p0``, at least ``w(p')`` above it. The limit
is the smallest value, over all a that are allowed at p, of the largest right side. A table needs
as many draws as its most demanding radius. A rule that may give up more images can go below.
"""

import argparse
import itertools
from pathlib import Path

import numpy as np
from scipy.special import betaincinv, rel_entr
from scipy.stats import binom

from benchmarks import futility
from benchmarks.exact_error import RULES
from rrcm.certification.certificates import cohen
from rrcm.certification.votes import records
from rrcm.certification.votes.boundaries import Rule, hopeless
from rrcm.certification.votes.bounds import complement
from rrcm.certification.votes.counts import Claim
from rrcm.certification.votes.sequential import Table as Constants
from rrcm.certification.votes.sequential import efficacy_bound

KINDS = ("easy", "between", "near", "hopeless", "all")
CHANCE = 0.01, 0.99  # between them, it is left to chance whether n draws certify a radius
POWERS = np.linspace(0.02, 0.999, 50)  # of the p' above p0
SHARES = np.linspace(0.0, 1.0, 401)  # ends of the intervals of a
TAIL = 1e-13  # part of a distribution that is neglected
EDGE = 1e-12  # p is kept away from 0 and 1 by as much
# (Number of radii certified, set of those given up) -> share of each number of misses.
Going = dict[tuple[int, int], np.ndarray]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("votes", type=Path, nargs="+")
    options.add_argument("--n", type=int, default=100_000)
    rules = {"nargs": "+", "default": ["spending:0.01", "spending:0.3", "proportional:0.3"]}
    options.add_argument("--rules", **rules, help="and their beta; the limit is of the first")
    arguments = options.parse_args()
    print("| votes | rule | kind | images | limit | draws | of the limit | lost |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for path in arguments.votes:
        sigma, p = shares(path)
        claim = Claim(certificate=cohen, sigma=sigma, alpha=futility.ALPHA)
        tables = {}
        for rule in arguments.rules:
            name, beta = rule.split(":")
            constants = Constants(radii=futility.RADII, beta=float(beta))
            tables[rule] = Table(RULES[name](constants, n=arguments.n, claim=claim))
        first = next(iter(tables.values()))
        of_none, least = first.of_none(p), first.limit(p)
        kinds = np.array([kind(chances) for chances in of_none])
        for name, table in tables.items():
            draws, certified = zip(*map(table.followed, p.tolist()), strict=True)
            lost = of_none - np.array(certified)
            for one in KINDS:
                if (at := (kinds == one) | (one == "all")).any():
                    mean, fewest = np.array(draws)[at].mean(), least[at].mean()
                    print(
                        f"| {path.stem} | `{name}` | {one} | {at.sum()} | {fewest:,.0f} "
                        f"| {mean:,.0f} | {mean / fewest:.2f} | {lost[at].sum(axis=0).max():.2f} |",
                        flush=True,
                    )


def shares(path: Path) -> tuple[float, np.ndarray]:
    """Sigma, and of each image the share of the chosen class in all draws of the second round."""
    header, rows = records.read(path)
    votes = [row.votes(len(header.classes)) for row in rows]
    return header.sigma, np.array([v.counts[-1, v.c_A] / v.draws[-1] for v in votes])


def kind(certified: np.ndarray) -> str:
    """The kind of an image that n draws certify so probably at each radius [R]."""
    low, high = CHANCE
    if ((certified > low) & (certified < high)).any():
        return "near"
    return "easy" if certified.min() > low else "between" if certified[0] > low else "hopeless"


class Table:
    """The radii of a rule that n draws can certify, and its boundaries for them."""

    def __init__(self, rule: Rule) -> None:
        """Of ``rule``, at its own alpha."""
        levels, sigma = rule.levels(rule.claim.alpha), rule.claim.sigma
        qs = [efficacy_bound(radius, sigma=sigma) for radius in sorted(rule.cfg.radii)]
        self.qs = [q for q in qs if q > levels.qs[-1]]
        at = [int(np.argmin(np.abs(np.array(levels.qs) - q))) for q in self.qs]
        self.alpha, self.beta, self.looks = rule.claim.alpha, rule.cfg.beta, rule.looks
        self.most = levels.most[at]  # misses [R, L] that certify each radius
        self.fewest = np.array(  # misses [R, L] that give it up
            [hopeless(self.looks, int(most[-1]), self.beta, rule.pace) for most in self.most]
        )

    def followed(self, p: float) -> tuple[float, np.ndarray]:
        """The mean draws for an image of ``p``, and how probably each radius [R] is certified."""
        draws, certified, before, first = 0.0, np.zeros(len(self.qs)), 0, 0
        going: Going = {(0, 0): np.ones(1)}
        for look, most, fewest in zip(self.looks, self.most.T, self.fewest.T, strict=True):
            low, pmf = _pmf(look - before, 1 - p)
            first, before, now = first + low, look, Going()
            for (reached, given_up), share in going.items():
                after = np.convolve(share, pmf)
                ends = np.clip([*most + 1, *fewest], first, first + len(after))
                ends = np.unique([first, *ends, first + len(after)])
                for start, end in itertools.pairwise(ends.tolist()):
                    part = after[start - first : end - first]
                    passed = max(reached, int((start <= most).sum()))
                    futile = given_up | sum(1 << i for i, m in enumerate(fewest) if start >= m)
                    if passed == len(self.qs) or futile >> passed & 1:
                        draws += look * part.sum()
                        certified[:passed] += part.sum()
                    else:
                        kept = now.setdefault((passed, futile), np.zeros(len(after)))
                        kept[start - first : end - first] += part
            some = np.flatnonzero(sum(now.values(), np.zeros(1)) > TAIL)
            if not len(some):
                break
            low, high = int(some[0]), int(some[-1]) + 1
            first, going = first + low, {known: share[low:high] for known, share in now.items()}
        return draws, certified

    def of_none(self, p: np.ndarray) -> np.ndarray:
        """How probably n draws at the full alpha certify images of ``p`` [N] at each radius."""
        n = self.looks[-1]
        least = [
            futility.fewest(n, lambda hits, q=q: complement(hits, n, self.alpha) < q)
            for q in self.qs
        ]
        return binom.sf(np.array(least) - 1, n, p[:, None])

    def limit(self, p: np.ndarray) -> np.ndarray:
        """The least mean draws [N] for images of ``p`` [N]."""
        n, of_radii = self.looks[-1], zip(self.qs, self.most[:, -1].tolist(), strict=True)
        return np.max([self._limit(p, q, n - most) for q, most in of_radii], axis=0)

    def _limit(self, p: np.ndarray, q: float, least: int) -> np.ndarray:
        """The same for one radius: 1 - p0 is ``q``, and ``least`` hits among n draws certify it."""
        n, p = self.looks[-1], np.clip(p, EDGE, 1 - EDGE)
        power = (1 - self.beta) * binom.sf(least - 1, n, p)[:, None]
        others = betaincinv(least, n - least + 1, POWERS)  # where n draws have these powers
        shares = np.union1d(SHARES, self.alpha)
        enough = _draws(shares, self.alpha, p, 1 - q, above=True)  # rises with a
        in_vain = np.zeros_like(enough)  # falls with a
        for other, there in zip(others, POWERS * (1 - self.beta), strict=True):
            in_vain = np.maximum(in_vain, _draws(shares, there, p, other, above=False))
        need = np.maximum(enough[:, :-1], in_vain[:, 1:])  # at least, for all a between two shares
        above = (p > 1 - q)[:, None]
        allowed = (shares[1:] >= power) & (above | (shares[:-1] < self.alpha))
        return np.minimum(np.where(allowed, need, np.inf).min(axis=1), n)


def _draws(a: np.ndarray, bound: float, p: np.ndarray, other: float, *, above: bool) -> np.ndarray:
    """kl(a, bound) / kl(p, other) [N, A], where a is on the far side of the bound; else 0."""
    far = (a > bound) if above else (a < bound)
    right = (p > other) if above else (p < other)
    entropy = rel_entr(a, bound) + rel_entr(1 - a, 1 - bound)
    distance = rel_entr(p, other) + rel_entr(1 - p, 1 - other)
    return np.where(right, 1 / np.maximum(distance, EDGE), 0.0)[:, None] * np.where(far, entropy, 0)


def _pmf(draws: int, q: float) -> tuple[int, np.ndarray]:
    """The distribution of misses, from so many, without `TAIL` at either end."""
    low, high = int(binom.ppf(TAIL, draws, q)), int(binom.isf(TAIL, draws, q))
    return low, binom.pmf(np.arange(low, high + 1), draws, q)


if __name__ == "__main__":
    main()
