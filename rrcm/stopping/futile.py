"""Stop where nothing can be certified any more; all that is certified has all n draws.

The full alpha is kept, however often one looks. The only claim that is ever made is that of
Clopper-Pearson after exactly n draws. It would be false with probability at most alpha if nothing
stopped; stopping only takes claims away.
"""

from dataclasses import dataclass

from rrcm.evidence import History
from rrcm.looks import at_the_end, hope, ladder, require_level


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """``beta`` is the chance, at each look, to give up an image whose p is above one half."""

    beta: float

    def __post_init__(self) -> None:
        require_level(self.beta)


class Rule:
    """Gives up on p <= 1/2 (eq. 15); so it also gives up what only `two_class` would certify."""

    fixed = True

    def __init__(self, cfg: Config, *, n: int, alpha: float, sigma: float) -> None:
        """``alpha`` is the level at which n draws will be judged; sigma does not matter."""
        self.looks = ladder(n)
        self.hope = {t: hope(t, n, 0.5, alpha=alpha, beta=cfg.beta) for t in self.looks}

    def stop(self, history: History) -> str | None:
        """``futile`` where p > 1/2 is implausible, or out of reach with only hits from now on."""
        draws, hits = history[-1]
        return "futile" if hits < self.hope[draws] else None

    def complement(self, history: History, alpha: float) -> float:
        """Upper bound of 1 - p; 1, which claims nothing, before n draws."""
        return at_the_end(history, self.looks[-1], alpha)
