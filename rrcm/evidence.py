"""Votes of one image, and the interfaces of what turns them into a radius.

`Evidence` holds the votes, a `Rule` decides when to stop and bounds probabilities, a `Certificate`
turns bounds into a radius, and a `Claim` is the certificate, level and sigma that a rule is laid
out for.
"""

import dataclasses
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

    @property
    def runner_up(self) -> np.ndarray:
        """Votes [L] of the strongest other class at each look, whichever class that is."""
        return np.delete(self.votes, self.c_A, axis=1).max(axis=1, initial=0)

    def first(self, looks: int) -> "Evidence":
        """The same image when it had been looked at ``looks`` times."""
        return dataclasses.replace(self, draws=self.draws[:looks], votes=self.votes[:looks])

    def continued(self, draws: int, *, hits: int, runner_up: int) -> "Evidence":
        """The same image with these votes after ``draws`` draws, of two classes: c_A and the other.

        A look at as many draws or more is replaced.
        """
        before = sum(look < draws for look in self.draws)
        votes = np.stack([self.votes[:, self.c_A], self.runner_up], axis=1)[:before]
        return dataclasses.replace(
            self,
            selection=np.array([1, 0]),
            draws=(*self.draws[:before], draws),
            votes=np.vstack([votes, [[hits, runner_up]]]),
        )


SOFT = 1 << 16  # soft votes are counted in whole steps of 1/65536, rounded down


class Rule(Protocol):
    """When to stop drawing, and what may be claimed then; see rrcm/stopping/.

    Made by ``Rule(cfg, n=..., claim=...)`` for ``n`` draws at most and one `Claim`.
    """

    looks: tuple[int, ...]  # ascending; the last is n, all draws that there may be
    fixed: bool  # whether claims are made after n draws only: then other bounds can be, too
    claim: "Claim"

    def stop(self, evidence: Evidence) -> str | None:
        """Why to stop at the last look of ``evidence``, or None to go on."""

    def complement(self, history: History, alpha: float) -> float:
        """Upper bound of 1 - p, p the probability of a hit, that fails with at most ``alpha``.

        Valid whenever and why-ever drawing stopped, and whatever the rule was laid out for.
        It never rises if there are more hits at some of the looks.
        """

    def settles(self, radius: float) -> bool:
        """Whether stopping decides every image at ``radius`` as n draws would.

        That is, for the `Claim` that the rule is laid out for, but for the share ``beta`` of images
        that a look may give up. Elsewhere certified accuracy is a lower bound of that of n draws.
        """

    def describe(self) -> str:
        """When drawing stops, for people."""


class Certificate(Protocol):
    """Votes to a radius; see rrcm/certificates/."""

    RUNNER_UP: bool  # whether votes of the runner-up count, too
    CLASS_VOTES: bool  # whether class votes decide; then stopping rules can be laid out for it

    def certify(
        self, evidence: Evidence, rule: Rule, *, sigma: float, alpha: float, coin: float
    ) -> "Certified":
        """The answer for one image."""

    def require(self, rule: Rule, *, alpha: float, pairs: int) -> None:
        """Refuse a rule whose bounds it cannot use, and numbers of draws that certify nothing.

        Raises:
            CertificateError: Says what would do.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """The certificate that a stopping rule is laid out for, at ``sigma`` in pixels.

    ``alpha`` is the failure probability of the certificate, what the noise takes of it already
    subtracted, and ``seed`` that of the coins of `randomized`.
    """

    certificate: Certificate
    sigma: float
    alpha: float
    seed: int = 0

    def radius(self, evidence: Evidence, rule: Rule) -> float:
        """The radius in pixels that is certified if drawing stops here; 0 for an abstention."""
        got = self.certificate.certify(
            evidence,
            rule,
            sigma=self.sigma,
            alpha=self.alpha,
            coin=coin(self.seed, evidence.idx),
        )
        return got.radius


def coin(seed: int, idx: int) -> float:
    """A number uniform on (0, 1) of its own for each seed and image, the same in every run."""
    bits = np.random.Generator(np.random.Philox(key=idx << 64 | seed)).integers(2**53)
    return (int(bits) + 0.5) * 2.0**-53


def best_complement(rule: Rule, alpha: float) -> float:
    """The least upper bound of 1 - p that there can be: all draws made, and every one a hit.

    Raises:
        CertificateError: Even that leaves room for p <= 1/2.
    """
    best = rule.complement([(draws, draws) for draws in rule.looks], alpha)
    if best >= 0.5:
        raise CertificateError(
            f"n: {rule.looks[-1]} votes can never certify at alpha = {alpha}: all would abstain"
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
