"""The exact error of the stopping rules `spending` and `proportional`: too much claimed of p.

``python -m benchmarks.exact_error`` adds up, for each of 10,000 p, the probability that the bound
of 1 - p is too small at any look, whether or not drawing would have stopped there. It follows the
distribution of misses from look to look by sums of its own, and counts what it neglects as errors.
The control claims by Clopper-Pearson at full alpha at the same looks, and must be seen to fail.
"""

import argparse
import math
from collections.abc import Iterator

import numpy as np
from scipy.special import gammaln, ndtr

from benchmarks import futility
from rrcm.certification.certificates import cohen
from rrcm.certification.stopping import proportional, spending
from rrcm.certification.votes.boundaries import Rule
from rrcm.certification.votes.bounds import complement
from rrcm.certification.votes.counts import Claim
from rrcm.certification.votes.sequential import Table

DEVIATIONS, MORE = 8.0, 40  # misses farther from their mean count as errors
RULES = {"spending": spending.Rule, "proportional": proportional.Rule}
LARGEST = 4.0  # the largest radius, in sigma, whose p is tried


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--n", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    options.add_argument("--rule", choices=RULES, default="spending")
    arguments = options.parse_args()
    radii = np.linspace(0.0, LARGEST, 10_000)
    print("| n | looks | largest error / alpha | at p | of radii of the table | control |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for n in arguments.n:
        rule, alpha = _laid_out(arguments.rule, n, futility.ALPHA), futility.ALPHA
        steps = Steps(rule.looks)
        errors = np.array([error(rule, steps, float(ndtr(-r)), alpha) for r in radii])
        table = [error(rule, steps, q, alpha) for q in _within(rule, alpha)]
        worst = int(errors.argmax())
        peeking = steps.probability(_peeking(rule.looks, 0.5, alpha), 0.5)
        print(
            f"| {n:,} | {len(rule.looks)} | {errors[worst] / alpha:.6f} "
            f"| {float(ndtr(radii[worst])):.6f} | {min(table) / alpha:.3f} to "
            f"{max(table) / alpha:.6f} | {peeking / alpha:.2f} |",
            flush=True,
        )


def error(rule: Rule, steps: "Steps", q: float, alpha: float) -> float:
    """The probability that a look claims less than ``q`` = 1 - p."""
    levels = rule.levels(alpha)
    below = [most for level, most in zip(levels.qs, levels.most, strict=True) if level < q]
    return steps.probability(below[0], q) if below else 0.0


class Steps:
    """Distributions of misses from look to look."""

    def __init__(self, looks: tuple[int, ...]) -> None:
        """Each look is after so many draws."""
        self.looks = looks
        self._ways = [
            gammaln(d + 1) - gammaln(np.arange(d + 1) + 1) - gammaln(d - np.arange(d + 1) + 1)
            for d in np.diff(looks, prepend=0)
        ]

    def probability(self, most: np.ndarray, q: float) -> float:
        """That misses of probability ``q`` are at most ``most`` [L] at a look; not less than it."""
        first, left = 0, np.ones(1)
        for look, (low, pmf), end in zip(self.looks, self._pmfs(q), most.tolist(), strict=True):
            first, left = first + low, np.convolve(left, pmf)
            left[: max(0, end + 1 - first)] = 0.0
            low, high = _window(look, q)
            start, stop = max(0, low - first), max(1, high - first + 1)
            first, left = first + start, left[start:stop]
        return 1.0 - float(left.sum())

    def _pmfs(self, q: float) -> Iterator[tuple[int, np.ndarray]]:
        for ways in self._ways:
            draws = len(ways) - 1
            low, high = _window(draws, q)
            misses = np.arange(low, high + 1)
            logs = ways[low : high + 1] + misses * math.log(q) + (draws - misses) * math.log1p(-q)
            yield low, np.exp(logs)


def _window(draws: int, q: float) -> tuple[int, int]:
    width = DEVIATIONS * math.sqrt(draws * q * (1 - q)) + MORE
    return max(0, math.floor(draws * q - width)), min(draws, math.ceil(draws * q + width))


def _laid_out(name: str, n: int, alpha: float) -> Rule:
    claim = Claim(certificate=cohen, sigma=futility.SIGMA, alpha=alpha)
    return RULES[name](Table(radii=futility.RADII, beta=futility.BETA), n=n, claim=claim)


def _within(rule: Rule, alpha: float) -> list[float]:
    """1 - p of the radii of the table that n draws can certify."""
    qs = [float(ndtr(-r / futility.SIGMA)) for r in futility.RADII]
    return [q for q in qs if q > rule.levels(alpha).qs[-1]]


def _peeking(looks: tuple[int, ...], q: float, alpha: float) -> np.ndarray:
    most = [t - futility.fewest(t, lambda k, t=t: complement(k, t, alpha) < q) for t in looks]
    return np.array(most)


if __name__ == "__main__":
    main()
