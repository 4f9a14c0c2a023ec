"""Entries: the rows of a report, each with one classifier's certificates and their votes."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pandas as pd

from rrcm.analysis.estimation import statistics
from rrcm.certification import certify
from rrcm.certification.certificates import _top
from rrcm.certification.votes import reach
from rrcm.certification.votes.records import BUDGET, END, Header, Row
from rrcm.config.params import Params
from rrcm.core.errors import DataError
from rrcm.core.labels import UNKNOWN

Votes = tuple[Header, list[Row]]
SERIES = [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One row of the report: a classifier smoothed at a sigma, and its certificates.

    ``table`` has at least the columns ``idx, label, predict, radius, correct``. For a classifier
    from elsewhere ``method`` may be empty, and ``sigma`` and ``alpha`` (the failure probability of
    a certificate) unknown. ``votes``, if they are kept, are the votes from which ``certificate``
    made ``table``. ``settings`` are the settings of the training in params.yaml without seeds and
    names, dotted key -> value; empty for a classifier from elsewhere. ``stale`` has the reasons why
    params.yaml no longer describes the entry; tables and figures then mark it. ``relabelled``: its
    labels are not those of the pictures when they were certified.
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
    settings: dict[str, Any] = field(default_factory=dict)
    stale: tuple[str, ...] = ()
    relabelled: bool = False

    @property
    def norm(self) -> str:
        """The norm of the radii, as ``table`` says."""
        table = self.table
        return str(table["norm"].iloc[0] if "norm" in table else table.attrs.get("norm", "l2"))

    @property
    def top(self) -> int:
        """The k of top-k certificates; 0 where radii are of the most probable class."""
        return int(self.table["top"].iloc[0]) if "top" in self.table else 0

    @property
    def split(self) -> str:
        """The split of the images, or an empty text if the table has no such column."""
        return str(self.table["split"].iloc[0]) if "split" in self.table and len(self.table) else ""

    @property
    def cut_short(self) -> bool:
        """Whether ACR is a lower bound of that of n draws of each image, judged at the full alpha.

        It is if drawing stopped early, or if the stopping rule divides alpha among its looks.
        """
        return self._stopped_early or self._divided

    @property
    def _divided(self) -> bool:
        return self.votes is not None and not self.votes[0].rule().fixed

    @property
    def records_stops(self) -> bool:
        """Whether ``table`` says why drawing stopped; else it is assumed not to stop early."""
        return {"n", "stop"} <= {*self.table}

    @property
    def _stopped_early(self) -> bool:
        return self.records_stops and bool(self.early(self.table).any())

    def early(self, table: pd.DataFrame) -> pd.Series:
        """Of which images of ``table`` drawing stopped early, bool [N]."""
        # without votes it is unknown how many draws were asked for
        return (table["stop"] != END) & (table["n"] < (self.votes[0].n if self.votes else math.inf))

    def lower_bounds(self, radii: Sequence[float]) -> list[bool]:
        """Whether the certified share at each radius is a lower bound, in the sense of `cut_short`.

        It is where it is `undecided`, and wherever the stopping rule divides alpha.
        """
        return [self._divided or one for one in self.undecided(radii)]

    def undecided(self, radii: Sequence[float]) -> list[bool]:
        """Whether drawing stopped before every image was decided at each radius.

        The stopping rule decides its radii, for its very certificate and alpha. Certificates of one
        rule compare only there: elsewhere the better classifier may stop sooner, and look worse.
        """
        if not self._stopped_early:
            return [False] * len(radii)
        if not self.votes or (self.table["stop"] == BUDGET).any():
            return [True] * len(radii)
        header, alpha = self.votes[0], self.votes[0].alpha if self.alpha is None else self.alpha
        if header.certificate != self.certificate or not math.isclose(header.alpha, alpha):
            return [True] * len(radii)
        rule = header.rule()
        return [not rule.settles(radius) for radius in radii]

    @property
    def labelled(self) -> bool:
        """Whether any label is known."""
        return bool((self.table["label"] != UNKNOWN).any())

    @property
    def judged(self) -> pd.DataFrame:
        """The labelled images of ``table``; if none is, all, every answer counted as correct."""
        if not self.labelled:
            return statistics.answered(self.table)
        return self.table[self.table["label"] != UNKNOWN]

    @property
    def group(self) -> tuple[str, float]:
        """Model and sigma: entries that share both are compared. An unknown sigma is last."""
        return self.model, float("inf") if self.sigma is None else self.sigma


def from_votes(
    name: str,
    header: Header,
    rows: list[Row],
    *,
    alpha: float | None = None,
    certificates: Sequence[str] = (),
    top: int = 0,
) -> Entry:
    """Certify votes at ``alpha``, or else at the alpha of their stopping rule.

    ``certificates`` are those of `certify.certify`, ``cohen`` by default, or that of the noise; the
    first is the entry's. With ``top``, the k of `_top.table`, there are none of them.

    Raises:
        DataError: There are no images, as in a share of fewer images than shares.
    """
    if not rows:
        raise DataError(f"{name}: no images; it is share {header.shard} of {header.images:,}")
    level = header.alpha if alpha is None else alpha
    own = header.certificate if header.certificate == header.noise else "cohen"
    certificates = certificates or [own]
    if top:
        table = _top.table(header, rows, k=top, alpha=level)
    else:
        table = certify.certify(header, rows, certificates=[*certificates], alpha=level)
    return Entry(
        name=name,
        model="",
        method=header.run,
        sigma=header.sigma,
        table=table,
        alpha=level,
        votes=(header, rows),
        certificate=f"top {top}" if top else certificates[0],
    )


def entries(
    params: Params, tables: dict[str, pd.DataFrame], votes: dict[str, Votes]
) -> list[Entry]:
    """The entries of the evaluations in ``params``, sorted as by `ordered`.

    ``votes`` may lack names; results that need votes are then left out.
    """
    runs = params.classifiers()
    return ordered(
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
            settings=settings(params, evaluation.run),
        )
        for name, evaluation in params.evals.items()
        for run in [runs[evaluation.run]]
    )


def ordered(found: Iterable[Entry]) -> list[Entry]:
    """Sort by model, sigma and training sigma, unknown ones last; else the order is kept."""
    last = float("inf")
    return sorted(found, key=lambda e: (*e.group, last if e.sigma_train is None else e.sigma_train))


def settings(params: Params, name: str) -> dict[str, Any]:
    """The settings of a classifier's training, dotted key -> value, such as ``pretrain.loss.ema``.

    Keys begin with their section: ``run``, ``model``, ``recipe``, ``pretrain``, ``ensemble`` or
    ``purified``. An ensemble also has the settings of its members if these differ only in seeds,
    and otherwise their names; a purified classifier also has those of the classifier behind the
    denoiser. Seeds are left out, and so are names of sections, except that of a denoiser.
    """
    if name in params.purified:
        cfg = asdict(params.purified[name])
        behind = settings(params, cfg.pop("run"))
        return flat(cfg, "purified") | behind
    if name in params.ensembles:
        runs = params.runs_of(name)
        members = [settings(params, run) for run in runs]
        alike = all(member == members[0] for member in members)
        shared = members[0] if alike else {"ensemble.runs": runs}
        return flat(asdict(params.ensembles[name]), "ensemble") | shared
    run = params.runs[name]
    parts = {"run": asdict(run), "model": params.models[run.model]}
    parts["recipe"] = asdict(params.recipes[run.recipe])
    folder, _, start = run.start.partition("/")
    if folder == "pretrained":
        parts["pretrain"] = asdict(params.pretrain[start])
        del parts["run"]["start"]
    names = {f"{part}.{key}" for part in ("run", "pretrain") for key in ("seed", "model", "recipe")}
    found = {key: value for part, node in parts.items() for key, value in flat(node, part).items()}
    return {key: value for key, value in found.items() if key not in names}


def flat(node: Any, path: str) -> dict[str, Any]:
    """Flatten nested mappings to dotted key -> value."""
    if not isinstance(node, dict):
        return {path: node}
    return {k: v for key, part in node.items() for k, v in flat(part, f"{path}.{key}").items()}


def default_radii(found: list[Entry]) -> list[float]:
    """The radii of a table by default: those that a stopping rule decided, or a series.

    Between the radii that a rule decided, certified accuracy may be lower than all draws would
    show. The series goes up to the largest certified radius; of votes at one sigma it is that of
    `reach.usual`. Top-k certificates reach further than a rule decides.
    """
    headers = _headers(found)
    settled = {radius for header in headers for radius in header.stopping.get("radii", [])}
    if settled:
        return sorted(settled)
    if len(headers) == len(found) and len({header.sigma for header in headers}) == 1:
        return max(map(reach.usual, headers), key=len)
    largest = max(float(entry.table["radius"].max()) for entry in found)
    return [radius for radius in SERIES if radius <= largest] or SERIES[:1]


def beyond(found: list[Entry], radii: Sequence[float]) -> list[str]:
    """Lines on ``radii`` that no image of an entry can reach; see `reach.beyond`."""
    lines = (line for header in _headers(found) for line in reach.beyond(header, radii))
    return [*dict.fromkeys(lines)]


def _headers(found: list[Entry]) -> list[Header]:
    """Those of votes whose rule decided the radii of an entry."""
    return [entry.votes[0] for entry in found if entry.votes and not entry.top]


def require_alike(found: list[Entry]) -> None:
    """Refuse entries that do not compare in one table; an unknown split compares with any.

    Raises:
        DataError: Some entries have labels and others do not, or they are of several splits, norms
            or k of top-k certificates; names one of each.
    """
    kinds: list[Callable[[Entry], str]] = [
        lambda one: f"has radii of top {one.top}" if one.top else "has radii of one class",
        lambda one: f"has {one.norm} radii",
        lambda one: "has labels" if one.labelled else "has no labels",
        lambda one: one.split and f"is of the {one.split} split",
    ]
    for kind in kinds:
        names = {said: one.name for one in reversed(found) if (said := kind(one))}
        if len(names) > 1:
            (this, first), (that, second), *_ = sorted(names.items())
            raise DataError(
                f"{first} {this} and {second} {that}: what is certified of them does not compare "
                "in one table; report them apart"
            )


def split(found: list[Entry]) -> str:
    """The split of the entries, as words for a title; empty if it is unknown."""
    named = {entry.split for entry in found if entry.split}
    return f" of the {named.pop()} split" if named else ""


def sigma(entry: Entry) -> str:
    """Sigma as text; a question mark if it is unknown."""
    return "?" if entry.sigma is None else f"{entry.sigma:g}"


def label(entry: Entry, found: list[Entry]) -> str:
    """The method, with what distinguishes the entries of one sigma, and marks.

    They say that it is stale, and at which alpha it is where not all are at the same or it is laxer
    than was asked of its votes.
    """
    short = _short(entry, found)
    twins = [e for e in found if (e.sigma, _short(e, found)) == (entry.sigma, short)]
    name = short if len(twins) == 1 else f"{short} ({entry.name})"
    own = entry.votes[0].alpha if entry.votes else math.inf
    asked = f", votes {own:g}" if (entry.alpha or 0) > own * (1 + 1e-9) else ""
    if asked or len({e.alpha for e in found}) > 1:
        level = "unknown" if entry.alpha is None else f"= {entry.alpha:g}"
        name = f"{name} (α {level}{asked})"
    return f"{name} (stale)" if entry.stale else name


def _short(entry: Entry, found: list[Entry]) -> str:
    parts = [entry.method] if entry.method else []
    if not parts or len({e.model for e in found}) > 1:
        parts.insert(0, entry.model)
    if entry.sigma_train not in (None, entry.sigma):
        parts.append(f"(trained at σ = {entry.sigma_train:g})")
    if len({e.seed for e in found}) > 1 and entry.seed is not None:
        parts.append(f"seed {entry.seed}")
    return " ".join(parts)
