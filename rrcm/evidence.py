"""What sampling saw of one image, and what a certificate says of it: between votes and radii."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rrcm.errors import CertificateError

ABSTAIN = -1
History = list[tuple[int, int]]  # (draws, hits) at looks, both cumulative, draws ascending


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Two independent rounds of noisy votes on one image.

    ``selection`` [K] chooses the class. ``votes`` [L, K] are the cumulative votes of the second
    round when it was looked at, after ``draws`` [L] of its draws. The last two are optional, zeros
    where there was none: ``soft`` are sums over all draws of the second round, of the chosen
    class's probability in whole units of ``1 / SOFT`` and of the squares of these whole numbers;
    ``paired`` counts disagreements with another function on the same noisy inputs, and those
    inputs.
    """

    idx: int
    selection: np.ndarray
    draws: tuple[int, ...]
    votes: np.ndarray
    soft: tuple[int, int]
    paired: tuple[int, int]

    @property
    def c_A(self) -> int:
        """The chosen class: most votes of the selection, the lowest class among equals."""
        return int(self.selection.argmax())

    def history(self, label: int) -> History:
        """How often ``label`` was voted for, at each look."""
        return list(zip(self.draws, self.votes[:, label].tolist(), strict=True))


SOFT = 1 << 16  # soft votes are counted in whole steps of 1/65536, rounded down


class Rule(Protocol):
    """When to stop drawing, and what may be claimed then; see rrcm/stopping/."""

    looks: tuple[int, ...]  # ascending; the last is n, all draws that there may be
    fixed: bool  # whether claims are made after n draws only: then other bounds can be, too

    def stop(self, history: History) -> str | None:
        """Why to stop at the last look of ``history``, or None to go on."""

    def complement(self, history: History, alpha: float) -> float:
        """Upper bound of 1 - p, p the probability of a hit, that fails with at most ``alpha``.

        Valid whenever and why-ever drawing stopped, and whatever alpha the rule was designed for.
        It never rises if there are more hits at some of the looks.
        """


def best_complement(rule: Rule, alpha: float) -> float:
    """The least upper bound of 1 - p that there can be: all draws made, and every one a hit.

    Raises:
        CertificateError: Even that leaves room for p <= 1/2.
    """
    best = rule.complement([(draws, draws) for draws in rule.looks], alpha)
    if best >= 0.5:
        raise CertificateError(
            f"{rule.looks[-1]} votes can never certify at alpha = {alpha}: all would abstain"
        )
    return best


@dataclass(frozen=True, kw_only=True, slots=True)
class Certified:
    """The answer for one image; ``label`` is ABSTAIN and ``radius`` 0 where nothing is certain."""

    label: int
    radius: float
    n_A: int
    n: int
    p_A: float


def conclude(evidence: Evidence, *, complement: float, radius: float) -> Certified:
    """The answer that 1 - p_A <= ``complement`` and ``radius`` give; abstains without a radius."""
    draws, hits = evidence.history(evidence.c_A)[-1]
    return Certified(
        label=evidence.c_A if radius > 0 else ABSTAIN,
        radius=max(radius, 0.0),
        n_A=hits,
        n=draws,
        p_A=1 - complement,
    )
