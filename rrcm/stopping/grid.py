"""Stop when all radii of a table are settled: certified, or out of reach.

Half of alpha pays for claims at any look, by a mixture martingale (eq. 16), and half is kept for
Clopper-Pearson after all n draws, so that close images lose next to nothing against it (eq. 18).
Radii between those of the table may come out smaller than n draws would have made them.
"""

import math
from dataclasses import dataclass

from rrcm.bounds import complement, log_wealth, mixture_complement
from rrcm.errors import ConfigError
from rrcm.evidence import History
from rrcm.looks import fewest, hopeless, ladder, needs, require_level, require_radius, target


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """``radii`` of the table, in pixels, and ``beta``.

    Of images that n draws would certify at a radius, each look may give up a share ``beta``.
    """

    radii: list[float]
    beta: float

    def __post_init__(self) -> None:
        if not self.radii:
            raise ConfigError("radii: must be one or more, got []")
        for radius in self.radii:
            require_radius(radius, key="radii")
        require_level(self.beta)


class Rule:
    """All looks are integer comparisons: hits against thresholds computed once."""

    fixed = False

    def __init__(self, cfg: Config, *, n: int, alpha: float, sigma: float) -> None:
        """Thresholds are those of a table at ``alpha`` and noise ``sigma``, in pixels."""
        self.looks, self.beta = ladder(n), cfg.beta
        targets = [target(radius, sigma=sigma) for radius in cfg.radii]
        self.needed = [needs(self.looks, q, alpha=alpha / 2) for q in targets]
        enough = math.log(2 / alpha)
        self.certain = {
            t: [fewest(t, lambda k, t=t, q=q: log_wealth(k, t, q) >= enough) for q in targets]
            for t in self.looks[:-1]
        } | {n: [needed[n] for needed in self.needed]}  # where the mixture never asks for less

    def stop(self, history: History) -> str | None:
        """``certified`` if all radii are settled and some certified, ``futile`` if none is."""
        shown = [any(k >= self.certain[t][g] for t, k in history) for g in range(len(self.needed))]
        lost = [hopeless(*history[-1], needed, self.beta) for needed in self.needed]
        if not all(a or b for a, b in zip(shown, lost, strict=True)):
            return None
        return "certified" if any(shown) else "futile"

    def complement(self, history: History, alpha: float) -> float:
        """Upper bound of 1 - p: the least of all looks (eq. 18)."""
        bounds = [mixture_complement(hits, draws, alpha / 2) for draws, hits in history]
        draws, hits = history[-1]
        if draws == self.looks[-1]:
            bounds.append(complement(hits, draws, alpha / 2))
        return min(bounds)
