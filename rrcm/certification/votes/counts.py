"""Vote counts of one image, and the interfaces between votes, stopping rules and certificates.

`ImageVotes` holds the counts, a `Rule` decides when to stop and bounds probabilities, a
`Certificate` turns bounds into a radius, and a `Claim` is the certificate, alpha and sigma that a
rule serves.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rrcm.core.errors import CertificateError

ABSTAIN = -1
R10 = (100, 125, 160, 200, 250, 315, 400, 500, 630, 800)  # preferred numbers, ISO 3
History = list[tuple[int, int]]  # (draws, hits) at looks, both cumulative, draws ascending


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageVotes:
    """Two independent rounds of noisy votes on one image.

    ``selection`` [K] chooses the class. ``counts`` [L, K] are the cumulative votes of the second
    round at each look, after ``draws`` [L] of its draws.
    """

    idx: int
    selection: np.ndarray
    draws: tuple[int, ...]
    counts: np.ndarray

    @property
    def c_A(self) -> int:
        """The selected class: most votes of the first round; ties go to the lowest class."""
        return int(self.selection.argmax())

    def history(self, label: int) -> History:
        """(draws, votes for ``label``) at each look, both cumulative."""
        return list(zip(self.draws, self.counts[:, label].tolist(), strict=True))

    @property
    def runner_up(self) -> np.ndarray:
        """Votes [L] of the strongest class besides c_A, whichever that is at each look."""
        return np.delete(self.counts, self.c_A, axis=1).max(axis=1, initial=0)

    def first(self, looks: int) -> "ImageVotes":
        """The votes at the first ``looks`` looks."""
        return dataclasses.replace(self, draws=self.draws[:looks], counts=self.counts[:looks])

    def continued(self, draws: int, *, hits: int, runner_up: int) -> "ImageVotes":
        """These votes plus a look after ``draws`` draws, reduced to c_A and the runner-up.

        Looks at as many draws or more are dropped.
        """
        before = sum(look < draws for look in self.draws)
        counts = np.stack([self.counts[:, self.c_A], self.runner_up], axis=1)[:before]
        return dataclasses.replace(
            self,
            selection=np.array([1, 0]),
            draws=(*self.draws[:before], draws),
            counts=np.vstack([counts, [[hits, runner_up]]]),
        )


def look_schedule(n: int) -> tuple[int, ...]:
    """Numbers of draws at which a rule may stop: ten per decade from 100, all below n, then n."""
    steps = (10**decade * step for decade in range(len(str(n))) for step in R10)
    return (*(look for look in steps if look < n), n)


class Rule(Protocol):
    """When to stop drawing, and the bound that holds then; see rrcm/certification/stopping/.

    Made by ``Rule(cfg, n=..., claim=...)`` for ``n`` draws at most and one `Claim`. Beside it are
    ``Config``, its constants, and ``DEFAULTS``, those that hold where nobody states others. Radii
    that nobody has named are None: `reach` gives those that n draws can certify.
    """

    cfg: Any  # the constants, of the rule's own type
    looks: tuple[int, ...]  # numbers of draws, ascending; the last is n
    claim: "Claim"
    fixed: bool = False  # all claims are made after exactly n draws, at the full alpha
    nested: bool = True  # it stops no later for a smaller n: votes can be cut to fewer draws
    packed: bool = False  # it looks hundreds of times: files have its votes in the packed format

    def __init__(self, cfg: Any, *, n: int, claim: "Claim") -> None:
        self.cfg, self.looks, self.claim = cfg, look_schedule(n), claim

    def __hash__(self) -> int:
        """By identity: what all images share is computed once for a rule."""
        return object.__hash__(self)

    def stop(self, votes: ImageVotes) -> str | None:
        """The reason to stop at the last look of ``votes``, or None to go on."""

    def complement(self, history: History, alpha: float) -> float:
        """Upper bound of 1 - p, p the probability of a hit, that fails with at most ``alpha``.

        Valid at any stopping time; 1 where the rule claims nothing. Non-increasing in the hits of
        each look.
        """

    def settles(self, radius: float) -> bool:
        """Whether ``radius`` is decided for each image: certified, or given up at ``beta``.

        For the `Claim` of the rule. Certified accuracy then equals what this rule claims after n
        draws, up to ``beta``; that is Clopper-Pearson at the full alpha only if it is ``fixed``.
        """

    def describe(self) -> str:
        """A sentence for reports: when drawing stops."""


def at_most(rule: Rule, votes: ImageVotes, of_class: np.ndarray, alpha: float) -> float:
    """Upper bound of the probability of a class that has ``of_class`` [L] of the votes at looks."""
    others = (votes.draws - of_class).tolist()
    return rule.complement(list(zip(votes.draws, others, strict=True)), alpha)


class Certificate(Protocol):
    """A theorem that turns votes into a radius; see rrcm/certification/certificates/."""

    __name__: str  # of its module
    READS: frozenset[str]  # which votes the radius depends on: "hits", "runner-up"

    def certify(self, votes: ImageVotes, rule: Rule, *, sigma: float, alpha: float) -> "Certified":
        """The certified answer for one image."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """The certificate that a stopping rule serves, at noise ``sigma`` in pixels.

    ``alpha`` is its failure probability minus the total-variation error of the noise sampler.
    """

    certificate: Certificate
    sigma: float
    alpha: float

    def radius(self, votes: ImageVotes, rule: Rule) -> float:
        """The radius in pixels certified if drawing stops now; 0 for abstention."""
        got = self.certificate.certify(votes, rule, sigma=self.sigma, alpha=self.alpha)
        return got.radius


def unanimous(rule: Rule, classes: int = 2) -> ImageVotes:
    """All votes of all draws of ``rule`` for the first class: none certify a larger radius."""
    first = np.eye(1, classes, dtype=np.int64)[0]
    return ImageVotes(idx=0, selection=first, draws=rule.looks, counts=np.outer(rule.looks, first))


def require_enough(certificate: Certificate, rule: Rule, *, alpha: float) -> None:
    """Refuse too few draws for unanimous votes to certify anything.

    Raises:
        CertificateError: There are too few.
    """
    if certificate.certify(unanimous(rule), rule, sigma=1.0, alpha=alpha).label == ABSTAIN:
        raise CertificateError(
            f"n: {rule.looks[-1]} votes can never certify at alpha = {alpha}: all would abstain"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Certified:
    """The answer for one image; ``label`` is ABSTAIN and ``radius`` 0 if nothing is certified."""

    label: int
    radius: float
    n_A: int
    n: int
    p_A: float


NOTHING = Certified(label=ABSTAIN, radius=0.0, n_A=0, n=0, p_A=0.0)  # of an image without draws


def conclude(
    votes: ImageVotes, *, complement: float, radius: float, label: int | None = None
) -> Certified:
    """The answer for the bound 1 - p <= ``complement``; abstains if ``radius`` <= 0.

    p is the probability of ``label``, by default that of c_A.
    """
    label = votes.c_A if label is None else label
    draws, hits = votes.history(label)[-1]
    return Certified(
        label=label if radius > 0 else ABSTAIN,
        radius=max(radius, 0.0),
        n_A=hits,
        n=draws,
        p_A=1 - complement,
    )
