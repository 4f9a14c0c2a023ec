"""What a report has a row of: one classifier's certificates, and the votes that they are from."""

from dataclasses import dataclass

import pandas as pd

from rrcm.analysis import statistics
from rrcm.errors import DataError
from rrcm.params import Params
from rrcm.votes import UNKNOWN, Header, Row

Votes = tuple[Header, list[Row]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One row of the report: a classifier smoothed at a sigma, and its certificates.

    ``table`` has the columns ``idx, label, predict, radius, correct`` at least. Of a classifier
    from elsewhere ``method`` may be empty, and ``sigma`` and ``alpha``, the failure probability of
    a certificate, unknown. ``votes`` are what ``certificate`` made ``table`` of, where they are
    kept.
    """

    name: str
    model: str
    method: str
    sigma: float | None
    table: pd.DataFrame
    alpha: float | None
    sigma_train: float | None = None
    seed: int | None = None
    votes: Votes | None = None
    certificate: str = "cohen"

    @property
    def labelled(self) -> bool:
        """Whether any label is known; an image without a label then counts as an error."""
        return bool((self.table["label"] != UNKNOWN).any())

    @property
    def judged(self) -> pd.DataFrame:
        """``table``, where ``correct`` says what is counted: right answers, or else any answer."""
        return self.table if self.labelled else statistics.answered(self.table)

    @property
    def group(self) -> tuple[str, float]:
        """What only entries of can be compared: one model at one sigma; unknown ones come last."""
        return self.model, float("inf") if self.sigma is None else self.sigma


def entries(
    params: Params, tables: dict[str, pd.DataFrame], votes: dict[str, Votes]
) -> list[Entry]:
    """What ``params`` evaluates, by model, sigma and training sigma, else in its order.

    ``votes`` may lack any name: what is derived from votes is then left out for it.
    """
    found = []
    for name, evaluation in params.evals.items():
        run = params.runs[evaluation.run]
        found.append(
            Entry(
                name=name,
                model=run.model,
                method=run.method,
                sigma_train=run.sigma,
                sigma=evaluation.sigma,
                seed=run.seed,
                table=tables[name],
                alpha=params.certify.alpha,
                votes=votes.get(name),
                certificate=params.certify.certificates[0],
            )
        )
    return sorted(found, key=lambda e: (*e.group, e.sigma_train))


def require_alike(found: list[Entry]) -> None:
    """Refuse to show shares of right answers and shares of any answers in one table.

    Raises:
        DataError: Some entries have labels and others do not; names one of each.
    """
    with_labels = [e.name for e in found if e.labelled]
    without = [e.name for e in found if not e.labelled]
    if with_labels and without:
        raise DataError(
            f"{without[0]} has no labels and {with_labels[0]} has: what is certified of either "
            "means different things; report them apart"
        )


def sigma(entry: Entry) -> str:
    """Sigma as a table shows it."""
    return "?" if entry.sigma is None else f"{entry.sigma:g}"


def label(entry: Entry, found: list[Entry]) -> str:
    """The method, with whatever else is needed to tell entries of one sigma apart."""
    short = _short(entry, found)
    twins = [e for e in found if (e.sigma, _short(e, found)) == (entry.sigma, short)]
    return short if len(twins) == 1 else f"{short} ({entry.name})"


def _short(entry: Entry, found: list[Entry]) -> str:
    parts = [entry.method] if entry.method else []
    if not parts or len({e.model for e in found}) > 1:
        parts.insert(0, entry.model)
    if entry.sigma_train not in (None, entry.sigma):
        parts.append(f"(trained at σ = {entry.sigma_train:g})")
    if len({e.seed for e in found}) > 1 and entry.seed is not None:
        parts.append(f"seed {entry.seed}")
    return " ".join(parts)
