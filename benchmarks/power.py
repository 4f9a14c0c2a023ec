"""What dividing alpha among looks costs, beside `none`, which looks once at the full alpha.

``python -m benchmarks.power`` prints for tables of one radius the most misses among n draws with
which each rule certifies it, and the probability that it does, exactly, for images of the p at
which that is farthest below the probability of `none`.
"""

import argparse

import numpy as np
from scipy.special import betaincinv

from benchmarks.futility import ALPHA, BETA, drawn, fewest, laid_out, thresholds
from rrcm.certification.certificates import cohen
from rrcm.certification.stopping import spending
from rrcm.certification.votes.boundaries import hopeless as given_up
from rrcm.certification.votes.bounds import complement
from rrcm.certification.votes.counts import Claim
from rrcm.certification.votes.sequential import efficacy_bound

CHANCES = np.linspace(0.02, 0.98, 97)  # that `none` certifies, among which the worst p is searched
GRID = 5e-4  # the beta of `grid`, at each look
Bounds = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # looks, enough, not futile


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--n", type=int, nargs="+", default=[1_000, 10_000])
    options.add_argument("--radius", type=float, nargs="+", default=[0.5, 1.0, 1.5, 2.0])
    arguments = options.parse_args()
    print("| n | r / σ | rule | misses | of `none` | certified, worst p | by `none` there |")
    print("| ---: | ---: | --- | ---: | ---: | ---: | ---: |")
    for n in arguments.n:
        for radius in arguments.radius:
            none, *rules = at(radius, n=n, alpha=ALPHA).items()
            for name, rule in rules:
                power, of_none = worst(rule, none[1])
                misses = f"{n - rule[1][-1]:,} | {n - none[1][1][-1]:,}"
                print(f"| {n:,} | {radius:g} | `{name}` | {misses} | {power:.3f} | {of_none:.3f} |")


def at(radius: float, *, n: int, alpha: float) -> dict[str, Bounds]:
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
        for p, chance in zip(betaincinv(least, n - least + 1, CHANCES), CHANCES, strict=True)
    ]
    return min(found, key=lambda pair: pair[0] - pair[1])


if __name__ == "__main__":
    main()
