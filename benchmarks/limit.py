r"""The least draws that any test needs, beside those of the stopping rules of tables.

``python -m benchmarks.limit`` lays the rules out for the radii of a table and compares their draws
on simulated images, whose p is known, with a limit that no rule of the same error and power can go
below.

For one radius, let ``p0`` be the probability that certifies it. Let a rule certify images of
``p0`` with probability at most alpha, and images of any larger p with at least the probability
``w(p)`` that its last look has by itself, less what it may give up. If it certifies images of p
with probability a, then for every other p' (Wald, 1945; here as the data-processing inequality for
the relative entropy of Bernoulli variables)

.. math:: E_p[N] \ge \mathrm{kl}(a, a') / \mathrm{kl}(p, p'),

where a' is the probability at p': at most alpha at ``p0``, at least ``w(p')`` above it. The limit
is the smallest value, over all a that are allowed at p, of the largest right side. A table needs
as many draws as its most demanding radius, so the limit of a table is the largest of its radii;
needing several radii at once may cost more than that.
"""

import argparse

import numpy as np
from scipy.special import betaincinv, rel_entr
from scipy.stats import binom

from benchmarks import futility
from rrcm.certification.certificates import cohen
from rrcm.certification.stopping import grid, spending
from rrcm.certification.votes.counts import Claim, Rule
from rrcm.certification.votes.sequential import efficacy_bound

BETAS = {"grid": 5e-4, "spending": 0.01}  # at each look; of all looks together
POWERS = np.linspace(0.02, 0.999, 50)  # of the p' above p0
SHARES = np.linspace(0.0, 1.0, 401)  # ends of the intervals of a
EDGE = 1e-12  # p is kept away from 0 and 1 by as much


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--n", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    options.add_argument("--alpha", type=float, default=0.001)
    options.add_argument("--images", type=int, default=1_000)
    options.add_argument("--seed", type=int, default=0)
    arguments = options.parse_args()
    print("| n | rule | limit | draws | of the limit | fewer than n |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    for n in arguments.n:
        for rule, lost in rules(n, arguments.alpha):
            p = futility.probabilities(arguments.images)
            least = of_a_table(rule, p, lost=lost).mean()
            votes = futility.simulated(rule.looks, arguments.images, seed=arguments.seed)
            draws = futility.draws(rule, votes)
            print(
                f"| {n:,} | `{rule.__module__.rpartition('.')[2]}` | {least:,.0f} | {draws:,.0f} "
                f"| {draws / least:.2f} | {n / draws:.2f} |",
                flush=True,
            )


def rules(n: int, alpha: float) -> list[tuple[Rule, float]]:
    """The rules with the constants of the presets, and what share of images each may lose."""
    claim = Claim(certificate=cohen, sigma=futility.SIGMA, alpha=alpha)
    radii = futility.RADII
    one = grid.Rule(grid.Config(radii=radii, beta=BETAS["grid"]), n=n, claim=claim)
    other = spending.Rule(spending.Config(radii=radii, beta=BETAS["spending"]), n=n, claim=claim)
    return [(one, one.cfg.beta * len(one.looks)), (other, other.cfg.beta)]


def of_a_table(rule: Rule, p: np.ndarray, *, lost: float) -> np.ndarray:
    """The least expected draws [N] for images of probability ``p`` [N] and a rule's radii.

    ``lost`` is the share of the images that n draws certify which may be given up.
    """
    claim, n = rule.claim, rule.looks[-1]
    found = []
    for radius in rule.cfg.radii:
        q = efficacy_bound(radius, sigma=claim.sigma)
        hits = futility.fewest(n, lambda k, q=q: rule.complement([(n, k)], claim.alpha) < q)
        found.append(limit(p, q, hits, n=n, alpha=claim.alpha, beta=lost))
    return np.max(found, axis=0)


def limit(
    p: np.ndarray, q: float, least: int, *, n: int, alpha: float, beta: float = 0.0
) -> np.ndarray:
    """The least expected draws for images of probability ``p`` [N] at one radius.

    Args:
        p: Probability of the class of each image.
        q: 1 - p0.
        least: The hits among n draws that certify the radius; w(p) is the probability of as many.
        n: The most draws that are made.
        alpha: The most probable that a false certificate may be.
        beta: Share of the images that n draws certify which may be given up.
    """
    if least > n:  # n draws never certify it, so nothing has to be drawn
        return np.zeros(len(p))
    p = np.clip(p, EDGE, 1 - EDGE)
    power = binom.sf(least - 1, n, p)
    others = betaincinv(least, n - least + 1, POWERS)  # where n draws have these powers
    shares = np.union1d(SHARES, alpha)
    enough = _draws(shares, alpha, p, 1 - q, above=True)  # rises with a
    hopeless = np.zeros_like(enough)  # falls with a
    for other, there in zip(others, POWERS * (1 - beta), strict=True):
        hopeless = np.maximum(hopeless, _draws(shares, there, p, other, above=False))
    need = np.maximum(enough[:, :-1], hopeless[:, 1:])  # at least, for all a between two shares
    above = (p > 1 - q)[:, None]
    allowed = (shares[1:] >= (power * (1 - beta))[:, None]) & (above | (shares[:-1] < alpha))
    return np.minimum(np.where(allowed, need, np.inf).min(axis=1), n)


def _draws(a: np.ndarray, bound: float, p: np.ndarray, other: float, *, above: bool) -> np.ndarray:
    """kl(a, bound) / kl(p, other) [N, A], where a is on the far side of the bound; else 0."""
    far = (a > bound) if above else (a < bound)
    right = (p > other) if above else (p < other)
    entropy = rel_entr(a, bound) + rel_entr(1 - a, 1 - bound)
    distance = rel_entr(p, other) + rel_entr(1 - p, 1 - other)
    return np.where(right, 1 / np.maximum(distance, EDGE), 0.0)[:, None] * np.where(far, entropy, 0)


if __name__ == "__main__":
    main()
