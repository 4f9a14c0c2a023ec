"""What `certify` returns: an `Answer` for each image, and the votes they come from."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any, overload

import pandas as pd

from rrcm.certification import certify
from rrcm.certification.certificates import _top
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.certification.votes.records import Header, Row


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The certified answer for one picture.

    With probability at least ``1 - alpha`` over the noise, the smoothed classifier predicts the
    class ``label`` for every picture within l2 distance ``radius`` (pixels in [0, 1], rounded
    down), and the base classifier has that class with probability at least ``p_A`` under noise at
    this one. ``label`` is ABSTAIN and ``radius`` 0 if nothing is certified. ``n_A`` of the ``n``
    draws of the second round voted for the selected class; ``draws`` counts both rounds, ``stop``
    is the reason they ended and ``rule`` describes the stopping rule. The same picture, ``idx`` and
    ``seed`` give the same answer.
    """

    label: int
    name: str
    radius: float
    p_A: float
    n_A: int
    n: int
    draws: int
    stop: str
    rule: str
    alpha: float
    idx: int
    seed: int

    @property
    def abstained(self) -> bool:
        """Whether no class is certified."""
        return self.label == ABSTAIN

    def robust_at(self, radius: float) -> bool:
        """Whether a class is certified within l2 distance ``radius`` of the picture.

        False says that this is not certified, not that a picture with another answer is near.
        """
        return not self.abstained and self.radius >= radius


@dataclass(frozen=True, eq=False)
class Answers(Sequence[Answer]):
    """The answers for several images, in their order; see `Answer`. A slice is the same of some.

    Each holds with probability at least ``1 - alpha``, not all of them together: they are those of
    the certificate and at the alpha of ``header``. ``header`` and ``rows`` are the votes that they
    are computed from, ``all_rows`` those of all images of ``header``, whichever a slice has.
    ``pictures`` are `duplicates.digests` of the images, where they are known. ``attacked`` is what
    an attack adds to the table: the distance to a picture that is certified to have a wrong class,
    NaN if none was found, and ``attacked_to``, this class. ``clean`` are the classes that the base
    classifier gives the pictures without noise, -1 where its scores are NaN, or None if that is not
    known.
    """

    header: Header
    rows: list[Row]
    attacked: dict[str, list[Any]] = field(default_factory=dict)
    _: KW_ONLY
    clean: list[int] | None = None
    all_rows: list[Row] = field(default_factory=list)
    pictures: Sequence[bytes] = ()

    def __post_init__(self) -> None:
        if not self.all_rows:
            object.__setattr__(self, "all_rows", self.rows)

    @cached_property
    def _table(self) -> pd.DataFrame:
        return certify.certify(self.header, self.rows, certificates=[self.header.certificate])

    @cached_property
    def _answers(self) -> list[Answer]:
        header, rule = self.header, self.header.rule().describe()
        return [
            Answer(
                **{name: line[name] for name in ("radius", "p_A", "n_A", "n", "stop", "idx")},
                label=line["predict"],
                name="" if line["predict"] == ABSTAIN else header.classes[line["predict"]],
                draws=line["n"] + sum(row.n0.values()),
                rule=f"{header.stop}: {rule}",
                alpha=header.alpha,
                seed=header.seed,
            )
            for row, line in zip(self.rows, self._table.to_dict("records"), strict=True)
        ]

    @overload
    def __getitem__(self, place: int) -> Answer: ...
    @overload
    def __getitem__(self, place: slice) -> "Answers": ...
    def __getitem__(self, place: int | slice) -> "Answer | Answers":
        if not isinstance(place, slice):
            return self._answers[place]
        return replace(
            self,
            rows=self.rows[place],
            attacked={name: column[place] for name, column in self.attacked.items()},
            clean=None if self.clean is None else self.clean[place],
            pictures=self.pictures[place],
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        given = sum(not answer.abstained for answer in self)
        return (
            f"{len(self)} answers at sigma = {self.header.sigma:g}, alpha = {self.header.alpha}: "
            f"{given} certified, {len(self) - given} abstained"
        )

    @property
    def further(self) -> dict[str, list[Any]]:
        """The columns that do not follow from the votes: ``clean``, and those of an attack."""
        return ({} if self.clean is None else {"clean": self.clean}) | self.attacked

    def to_pandas(self, *, top: int = 0) -> pd.DataFrame:
        """A row for each image: the columns of a certificates file, and ``name`` of the class.

        With ``top``, as by `_top.table`: whether the label is one of so many classes.
        """
        if top:
            return _top.table(self.header, self.rows, k=top, alpha=self.header.alpha)
        return self._table.assign(name=[answer.name for answer in self], **self.further)
