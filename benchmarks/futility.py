"""The certificates that the ``beta`` of the rule `grid` loses, and the draws that it saves.

``python -m benchmarks.futility`` computes the share of images that `grid` gives up though n draws
would certify them, exactly, from the distribution of their votes between looks. It is largest

- for images of one p next to a radius of the table (*one p*; the worst p);
- for images with exactly as many votes among n draws as certify the radius (*just enough*), an
  upper bound for any set of images, and the same for every p.

Images far from all radii of the table lose less, and so does a whole table. With ``--radius`` it
prints what dividing alpha among looks costs tables of one radius, beside `none`, which looks once
at the full alpha: the most misses among n draws with which each rule certifies the radius, and the
probability that it does, exactly, for images of the p at which that is farthest below `none`.

Draws are counted on a simulated table, and those of `spending` beside them. Phi^-1(p) of 1,000
images is normal with mean 1.15 and standard deviation 2.4: at sigma = 0.5, the shares of images
with p large enough for 0, 0.25, 0.5, 0.75 and 1 are within 2 points of the certified accuracies
that Lei et al. (2025) publish for their model B on CIFAR-10.
"""

import argparse
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import betaincinv, ndtr, ndtri
from scipy.stats import binom

from rrcm.certification.certificates import cohen
from rrcm.certification.stopping import grid, spending
from rrcm.certification.votes.boundaries import hopeless as given_up
from rrcm.certification.votes.bounds import complement
from rrcm.certification.votes.counts import Claim, ImageVotes, Rule, look_schedule
from rrcm.certification.votes.sequential import efficacy_bound

BETAS = (0.05, 0.01, 5e-3, 2e-3, 1e-3, 5e-4, 2e-4, 1e-4)
BETA = 0.01  # of `spending`, for all looks together
NEAR = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)  # radii in units of sigma
CHANCES = np.linspace(0.05, 0.95, 19)  # that n draws certify, among which the worst p is searched
TAIL = 1e-13  # part of a binomial distribution that is neglected
SIGMA, MEAN, SPREAD = 0.5, 1.15, 2.4
ALPHA, IMAGES = 0.001, 1_000
RADII = [0.0, 0.25, 0.5, 0.75, 1.0, 1.5]
GRID = 5e-4  # the beta of `grid` in the presets, at each look
SHARES = np.linspace(0.02, 0.98, 97)  # that `none` certifies, among which the worst p is searched
Bounds = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # looks, enough, not futile


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--n", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    options.add_argument("--beta", type=float, nargs="+", default=BETAS)
    options.add_argument("--radius", type=float, nargs="+", help="in sigma, of tables of one")
    arguments = options.parse_args()
    if arguments.radius:
        power(arguments.n, arguments.radius)
        return
    print("| n | beta | lost, one p | lost, just enough | draws for each image |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for n in arguments.n:
        votes = simulated(look_schedule(n))
        for beta in arguments.beta:
            found = [lost(r, n=n, alpha=ALPHA, beta=beta) for r in NEAR]
            cells = [f"{100 * max(each):.2f} %" for each in zip(*found, strict=True)]
            rule = laid_out(RADII, n=n, alpha=ALPHA, beta=beta, sigma=SIGMA)
            cells += [f"{draws(rule, votes):,.0f}"]
            print(f"| {n:,} | {beta:g} | " + " | ".join(cells) + " |", flush=True)
        claim = Claim(certificate=cohen, sigma=SIGMA, alpha=ALPHA)
        other = spending.Rule(spending.Config(radii=RADII, beta=BETA), n=n, claim=claim)
        votes = simulated(other.looks)
        print(f"| {n:,} | `spending`, {BETA:g} | | | {draws(other, votes):,.0f} |", flush=True)


def power(ns: list[int], radii: list[float]) -> None:
    print("| n | r / σ | rule | misses | of `none` | certified, worst p | by `none` there |")
    print("| ---: | ---: | --- | ---: | ---: | ---: | ---: |")
    for n in ns:
        for radius in radii:
            none, *rules = bounds_at(radius, n=n, alpha=ALPHA).items()
            for name, rule in rules:
                chance, of_none = worst(rule, none[1])
                misses = f"{n - rule[1][-1]:,} | {n - none[1][1][-1]:,}"
                print(
                    f"| {n:,} | {radius:g} | `{name}` | {misses} | {chance:.3f} | {of_none:.3f} |"
                )


def laid_out(
    radii: list[float], *, n: int, alpha: float, beta: float, sigma: float = 1.0
) -> grid.Rule:
    claim = Claim(certificate=cohen, sigma=sigma, alpha=alpha)
    return grid.Rule(grid.Config(radii=radii, beta=beta), n=n, claim=claim)


def seen(history: list[tuple[int, int]]) -> ImageVotes:
    """Votes of two classes from (draws, hits) at looks."""
    return ImageVotes(
        idx=0,
        selection=np.array([1, 0]),
        draws=tuple(draws for draws, _ in history),
        counts=np.array([[hits, draws - hits] for draws, hits in history]),
    )


def fewest(draws: int, enough: Callable[[int], bool]) -> int:
    """The smallest number of hits among ``draws`` that is ``enough``, or draws + 1 if none is."""
    return bisect_left(range(draws + 1), True, key=enough)


def lost(radius: float, *, n: int, alpha: float, beta: float) -> tuple[float, float]:
    """The largest share given up of images of one p, and of those with just enough hits.

    Shares are of images that n draws would certify. ``radius`` is the only one of the table, in
    units of sigma; 0 if n draws never certify it.
    """
    rule = laid_out([radius], n=n, alpha=alpha, beta=beta)
    enough, below = thresholds(rule, radius, alpha=alpha)
    least, never = enough[-1], (0,) * len(below)
    if least > n:
        return 0.0, 0.0
    shares = []
    for p in betaincinv(least, n - least + 1, CHANCES):
        ends = [drawn(p, rule.looks, enough, hopeless) for hopeless in (never, below)]
        shares.append(ends[0][0] - ends[1][0])
    just = (ends[0][1] - ends[1][1]) / binom.pmf(least, n, p)
    return max(shares), float(just)


def thresholds(
    rule: grid.Rule, radius: float, *, alpha: float
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """At each look, the fewest hits that certify ``radius``, and the fewest that are not futile."""
    q = efficacy_bound(radius, sigma=1.0)
    enough = [fewest(t, lambda k, t=t: rule.complement([(t, k)], alpha) < q) for t in rule.looks]
    below = [fewest(t, lambda k, t=t: rule.stop(seen([(t, k)])) != "futile") for t in rule.looks]
    return tuple(enough), tuple(below)


@lru_cache(maxsize=1 << 10)
def drawn(
    p: float, looks: tuple[int, ...], enough: tuple[int, ...], below: tuple[int, ...]
) -> tuple[float, float]:
    """The probability that votes of probability ``p`` suffice at a look and were not futile before.

    The second number is the part in which they suffice only at the last look, and just so. Exact
    up to `TAIL`.
    """
    found, before, first, left = 0.0, 0, 0, np.ones(1)  # left [hits]: undecided
    for look, least, fewest_ in zip(looks, enough, below, strict=True):
        low, high = _window(look - before, p)
        left = np.convolve(left, binom.pmf(np.arange(low, high + 1), look - before, p))
        hits = np.arange(first + low, first + low + len(left))
        just = left[hits == least].sum()
        found += left[hits >= least].sum()
        left[(hits >= least) | (hits < fewest_)] = 0.0
        low, high = _window(look, p)
        keep = (hits >= low) & (hits <= high)
        before, first, left = look, int(hits[keep][0]), left[keep]
    return float(found), float(just)


def _window(draws: int, p: float) -> tuple[int, int]:
    """The range of hits among ``draws`` without `TAIL` at either end."""
    return int(binom.ppf(TAIL, draws, p)), int(binom.isf(TAIL, draws, p))


def simulated(looks: tuple[int, ...]) -> list[list[tuple[int, int]]]:
    """Votes of each image at all looks; their p are even quantiles of the module's distribution."""
    p = ndtr(MEAN + SPREAD * ndtri((np.arange(IMAGES) + 0.5) / IMAGES))
    rng = np.random.default_rng(0)
    hits = np.cumsum([rng.binomial(t, p) for t in np.diff(looks, prepend=0)], axis=0)
    return [[*zip(looks, each.tolist(), strict=True)] for each in hits.T]


def draws(rule: Rule, votes: list[list[tuple[int, int]]]) -> float:
    """Mean draws per image until the rule stops, without those that select the class."""
    return float(np.mean([until(rule, history) for history in votes]))


def until(rule: Rule, history: list[tuple[int, int]]) -> int:
    ends = (i for i in range(1, len(history)) if rule.stop(seen(history[:i])))
    return history[next(ends, len(history)) - 1][0]


def bounds_at(radius: float, *, n: int, alpha: float) -> dict[str, Bounds]:
    """Each rule laid out for ``radius`` in units of sigma, with the `beta` of the presets."""
    q, claim = efficacy_bound(radius, sigma=1.0), Claim(certificate=cohen, sigma=1.0, alpha=alpha)
    once = fewest(n, lambda hits: complement(hits, n, alpha) < q)
    grid = laid_out([radius], n=n, alpha=alpha, beta=GRID)
    cfg = spending.Config(radii=[radius], beta=BETA)
    other = spending.Rule(cfg, n=n, claim=claim)
    levels, looks = other.levels(alpha), np.array(other.looks)
    most = levels.most[int(np.argmin(np.abs(np.array(levels.qs) - q)))]
    hopeless = given_up(other.looks, int(most[-1]), cfg.beta, other.pace)
    enough, below = looks - most, looks - hopeless + 1
    return {
        "none": ((n,), (once,), (0,)),
        "grid": (grid.looks, *thresholds(grid, radius, alpha=alpha)),
        "spending": (other.looks, tuple(enough.tolist()), tuple(below.tolist())),
    }


def worst(rule: Bounds, none: Bounds) -> tuple[float, float]:
    """How probably a rule and `none` certify images of the p at which they differ most."""
    ((n,), (least,), _) = none
    found = [
        (drawn(p, *rule)[0], float(chance))
        for p, chance in zip(betaincinv(least, n - least + 1, SHARES), SHARES, strict=True)
    ]
    return min(found, key=lambda pair: pair[0] - pair[1])


if __name__ == "__main__":
    main()
