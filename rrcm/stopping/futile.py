"""Stop where nothing can be certified any more; all that is certified has all n draws.

The full alpha is kept, however often one looks. The only claim that is ever made is that of
Clopper-Pearson after exactly n draws. It would be false with probability at most alpha if nothing
stopped; stopping only takes claims away.
"""

from dataclasses import dataclass

from rrcm.evidence import History
from rrcm.looks import at_the_end, hopeless, ladder, needs, require_level


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """``beta``: of images that n draws would certify, the share that each look may give up."""

    beta: float

    def __post_init__(self) -> None:
        require_level(self.beta)


class Rule:
    """Gives up where p > 1/2 will hardly be shown, even if `two_class` could certify (eq. 15b)."""

    fixed = True

    def __init__(self, cfg: Config, *, n: int, alpha: float, sigma: float) -> None:
        """``alpha`` is the level at which n draws will be judged; sigma does not matter."""
        self.looks = ladder(n)
        self.beta = cfg.beta
        self.needed = needs(self.looks, 0.5, alpha=alpha)

    def stop(self, history: History) -> str | None:
        """``futile`` where too few hits are left to hope for."""
        return "futile" if hopeless(*history[-1], self.needed, self.beta) else None

    def complement(self, history: History, alpha: float) -> float:
        """Upper bound of 1 - p; 1, which claims nothing, before n draws."""
        return at_the_end(history, self.looks[-1], alpha)
