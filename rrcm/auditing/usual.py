"""The prior of n, alpha and sigma: values that are common in publications are likelier.

It decides where radii have few digits, so that several values explain them equally well.
"""

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeVar

DRAWS = (*(step * 10**power for power in range(2, 6) for step in (1, 2, 5)), 10**6)
ALPHAS = (0.05, 0.025, 0.01, 0.005, 0.0025, 0.001, 0.0005, 0.00025, 0.0001, 0.00005, 0.00001)
SIGMAS = (
    *(0.06, 0.1, 0.12, 0.125, 0.15, 0.2, 0.25, 0.3, 0.35, 0.375, 0.4, 0.5, 0.6, 0.7, 0.75),
    *(0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0),
)
# Values of Cohen et al. (2019), arXiv:1902.02918, and of most publications since.
COMMON = {"n": (10_000, 100_000), "alpha": (0.001, 0.01), "sigma": (0.12, 0.25, 0.5, 1.0)}
V = TypeVar("V", int, float)
SHARE = 0.75  # of tables that have one of the common values
RARE = 0.05  # of tables whose sigma is none of SIGMAS
SLACK = 1e-6  # relative difference of two sigmas that count as equal
HINT = 0.8  # probability of a value that the user states


@dataclass(frozen=True, kw_only=True, slots=True)
class Prior:
    """Values of n, alpha and sigma to try, each with its probability.

    All sigmas that a stated one may be ``meant`` for are as likely as it.
    """

    draws: dict[int, float]
    alphas: dict[float, float]
    sigmas: dict[float, float]
    n: int | None
    alpha: float | None
    meant: tuple[float, float]

    def agrees(self, n: int, alpha: float, sigma: float) -> bool:
        """Whether a combination is as stated, or of half the stated alpha."""
        least, most = self.meant
        same = self.n in (None, n) and (least > most or least <= sigma <= most)
        return same and (self.alpha is None or alpha in (self.alpha, self.alpha / 2))

    def states(self, n: int, alpha: float, sigma: float) -> bool:
        """Whether all three values are stated, and the combination agrees."""
        full = None not in (self.n, self.alpha) and self.meant[0] <= sigma
        return full and self.agrees(n, alpha, sigma)

    def log(self, n: int, alpha: float, sigma: float) -> float:
        """The log probability of a combination.

        A sigma outside of ``sigmas`` is rare, and the rarer the more digits it has.
        """
        chance = HINT if self.meant[0] <= sigma <= self.meant[1] else self.sigmas.get(sigma)
        if chance is None:
            digits = len(Decimal(repr(float(sigma))).normalize().as_tuple().digits)
            chance = RARE * 10.0**-digits
        return math.log(self.draws[n] * self.alphas[alpha] * chance)


def meant(sigma: float) -> tuple[float, float]:
    """The sigmas that a stated one may stand for: a usual one for itself, others are rounded."""
    if sigma in SIGMAS:
        return sigma, sigma
    exact = Decimal(repr(float(sigma))).normalize()
    half = Decimal(5).scaleb(min(int(exact.as_tuple().exponent), -1) - 1)
    return float(exact - half), float(exact + half)


def agree(sigma: float, low: float, high: float) -> bool:
    """Whether a stated sigma may stand for one in [low, high]."""
    least, most = meant(sigma)
    return low <= most * (1 + SLACK) and high >= least * (1 - SLACK)


def is_usual(low: float, high: float) -> bool:
    """Whether a sigma in [low, high] is a usual one."""
    return any(low * (1 - SLACK) <= sigma <= high * (1 + SLACK) for sigma in SIGMAS)


def prior(*, n: int | None = None, alpha: float | None = None, sigma: float | None = None) -> Prior:
    """The prior over common values, with more weight on the given ones and on half of ``alpha``.

    Half, because a certificate with two bounds gives each of them half of alpha.
    """
    draws = _spread(DRAWS, COMMON["n"])
    alphas = _spread(ALPHAS, COMMON["alpha"])
    return Prior(
        draws=draws if n is None else _hinted(draws, [n]),
        alphas=alphas if alpha is None else _hinted(alphas, [alpha, alpha / 2]),
        sigmas=_spread(SIGMAS, COMMON["sigma"]),
        n=n,
        alpha=alpha,
        meant=(math.inf, -math.inf) if sigma is None else meant(sigma),
    )


def _spread(values: tuple[V, ...], common: tuple[V, ...]) -> dict[V, float]:
    rest = (1 - SHARE) / (len(values) - len(common))
    return {value: SHARE / len(common) if value in common else rest for value in values}


def _hinted(chances: dict[V, float], values: list[V]) -> dict[V, float]:
    # The others keep their weight: a wrong hint must not outweigh the evidence of the radii.
    hints = {value: max(chances.get(value, 0.0), HINT / len(values)) for value in values}
    return dict(sorted((chances | hints).items()))
