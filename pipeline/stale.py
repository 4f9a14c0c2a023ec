"""What results and classifiers were made with, and whether params.yaml still says the same.

Every command that shows a run by its name asks here. What is shown is described by its own record:
votes by the first line of their file, a classifier by the ``params`` in its ONNX file or
config.json, and all that the graph made by dvc.lock. params.yaml is what they are compared with.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline import checked
from pipeline.differences import differences, listed
from pipeline.lineage import Lock, md5, tree
from rrcm import certify, prefixes, registry, votes
from rrcm.analysis import entries
from rrcm.analysis.entries import Entry, Votes
from rrcm.config import PARAMS, Run
from rrcm.errors import BackendError, ConfigError, RrcmError
from rrcm.params import Params
from rrcm.parsing import parse, read_yaml
from rrcm.settings import Eval
from rrcm.votes import Header

CLASSIFIERS = ("runs", "ensembles", "purified")
DESCRIBE = (*CLASSIFIERS, "members", "models", "recipes", "pretrain", "denoisers")
OF_PAGE = ("certify", "data", "evals", "report")  # sections of which the report's page shows values
COMPARED = ["idx", "label", "predict", "radius", "correct", "n"]
PAGE = Path("report/index.html")
INFINITE = {".inf": float("inf"), "-.inf": float("-inf")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """A classifier by its own record, or, where there is none, by its name as ``method`` alone.

    ``sigma`` is that of training, ``calls`` are as `Params.calls` has them. ``stale`` says how it
    differs from params.yaml, a reason each.
    """

    model: str = ""
    method: str
    sigma: float | None = None
    seed: int | None = None
    calls: Mapping[str, int] = dataclasses.field(default_factory=dict)
    stale: tuple[str, ...]


class Present:
    """params.yaml and dvc.lock as they are now, read once."""

    def __init__(self) -> None:
        """Read both.

        Raises:
            RrcmError: One of them is damaged.
        """
        self.whole = checked.load()
        self.tree = read_yaml(PARAMS)
        self.lock = Lock()
        self._records: dict[tuple[str, str], dict[str, Any]] = {}

    def evaluations(self, names: Iterable[str]) -> list[Entry]:
        """The certificates of evaluations, described by what made them, as a report orders them.

        Raises:
            RrcmError: Certificates are not here or damaged, or their votes are.
        """
        return entries.ordered([self._evaluation(name) for name in names])

    def classifier(self, header: Header) -> Described:
        """The classifier that votes are of, from its file here, if that is the one."""
        name, first = self._parts(header.run)
        recorded, missing = self._record(header)
        found = self._described(name, recorded, missing)
        method = f"{found.method}, first {first}" if first else found.method
        return dataclasses.replace(found, method=method)

    def asked(self, run: str, *, backend: str) -> Described:
        """The classifier that a request found by name in params.yaml, as its file describes it.

        Guarantee: its model, method and sigma are those of params.yaml. What differs otherwise is
        in ``stale``, of the data, too.

        Raises:
            BackendError: It was made for another model, method or sigma, or does not say for which.
            RrcmError: Its file is missing or damaged.
        """
        file, maker = _file(run, backend), self.whole.maker(run)
        way = f"`dvc repro {maker}` makes it anew"
        recorded = self._about(run, backend)["params"]
        if not _kinds(recorded, run):
            raise BackendError(f"{file} does not say what {run} was made with; {way}")
        found, now = self._described(run, recorded, []), self.whole.classifiers()[run]
        if (found.model, found.method, found.sigma) != (now.model, now.method, now.sigma):
            raise BackendError(
                f"{file} is not the {run} of params.yaml: {listed(found.stale)}; {way}, or undo "
                "the edit of params.yaml"
            )
        data = {"data": read["data"]} if (read := self.lock.params("shard")) else {}
        return dataclasses.replace(found, stale=(*found.stale, *differences(data, self.tree)))

    def file(self, path: Path) -> tuple[str, ...] | None:
        """How what made a file differs from params.yaml; None where dvc.lock does not know it."""
        line = self.lock.lineage(path)
        return None if line is None else (*differences(line.params, self.tree), *_older(line.older))

    def page(self) -> tuple[str, ...]:
        """How the report's page differs from what is here, as far as dvc.lock says."""
        read = self.lock.params("report")
        changed = differences({key: read[key] for key in OF_PAGE if key in read}, self.tree)
        files = {path.name: md5(path) for path in Path("certificates").glob("*.csv")}
        if read and self.lock.read("report", Path("certificates")) != tree(files):
            changed = (*changed, "it is of other certificates than those here")
        return changed

    def _evaluation(self, name: str) -> Entry:
        path, drawn = Path(f"certificates/{name}.csv"), Path(f"votes/{name}.jsonl")
        table = certify.read(path)
        found = votes.read(drawn) if drawn.exists() else None
        recorded, reasons, found = self._certified(path, drawn, table, found)
        if found:
            recorded = recorded | self._sampled(name, found[0])
            if not _kinds(recorded, self._parts(found[0].run)[0]):
                more, missing = self._record(found[0])
                recorded, reasons = more | recorded, [*reasons, *missing]
        asked = recorded.get(f"evals.{name}", {"run": name, "sigma": None})
        level = recorded.get("certify", {"alpha": None, "certificates": ["cohen"]})
        stale = (*differences(recorded, self.tree), *reasons)
        made = self._past(recorded, asked["run"])
        if made is None:
            entry = Entry(
                name=name,
                model="",
                method=asked["run"],
                sigma=asked["sigma"],
                table=table,
                alpha=None,
                votes=found,
            )
            stale = stale or (f"nothing here says how {asked['run']} was made",)
        else:
            only = dataclasses.replace(made, evals={name: Eval(**asked)})
            (entry,) = entries.entries(only, {name: table}, {name: found} if found else {})
        return dataclasses.replace(
            entry, alpha=level["alpha"], certificate=level["certificates"][0], stale=stale
        )

    def _certified(
        self, path: Path, drawn: Path, table: pd.DataFrame, found: Votes | None
    ) -> tuple[dict[str, Any], list[str], Votes | None]:
        """What made certificates, what is not known of that, and their votes, if they are here."""
        line = self.lock.lineage(path)
        if line:
            reasons = _older(line.older)
            if found and self.lock.read(f"certify@{path.stem}", drawn) != md5(drawn):
                return line.params, [*reasons, f"{path} is not of the votes in {drawn}"], None
            return line.params, reasons, found
        if found:
            now = asdict(self.whole.certify)
            for level in (now, now | {"alpha": found[0].alpha}):
                if _agree(table, found, level):
                    return {"certify": level}, [], found
        return {}, [f"neither dvc.lock nor {drawn} says how {path} was made"], None

    def _sampled(self, name: str, header: Header) -> dict[str, Any]:
        """What the first line of votes says, in sections of params.yaml."""
        evaluation, sample = asdict(self.whole.evals[name]), asdict(self.whole.sample)
        return {
            f"evals.{name}": evaluation | {"run": header.run, "sigma": header.sigma},
            "sample": {key: getattr(header, key, value) for key, value in sample.items()},
            f"stopping.{header.stop}": header.stopping,
        }

    def _record(self, header: Header) -> tuple[dict[str, Any], list[str]]:
        """What made the classifier of votes, from its file here; and why that is not known.

        The classifier is known again by its weights; but votes in fp16 and int8 name those of the
        converted network, which is not converted again for this.
        """
        name, first = self._parts(header.run)
        try:
            about = self._about(name, header.backend)
        except RrcmError:
            return {}, [f"nothing here says how {name} was made"]
        weights = prefixes.weights(about["weights"], first) if first else about["weights"]
        converted = header.backend == "onnx" and header.precision != "fp32"
        if weights != header.weights and not converted:
            return {}, [f"the votes are not of the {_file(name, header.backend)} that is here"]
        return about["params"], []

    def _about(self, run: str, backend: str) -> dict[str, Any]:
        if (run, backend) not in self._records:
            module = registry.load("backends", backend)
            self._records[run, backend] = module.about(Path("."), run)
        return self._records[run, backend]

    def _described(self, run: str, recorded: dict[str, Any], missing: list[str]) -> Described:
        stale = (*differences(recorded, self.tree), *missing)
        made = self._past(recorded, run)
        if made is None:
            return Described(method=run, stale=stale or (f"nothing here says how {run} was made",))
        was: Run = made.classifiers()[run]
        return Described(
            model=was.model,
            method=was.method,
            sigma=was.sigma,
            seed=was.seed,
            calls=made.calls(run),
            stale=stale,
        )

    def _past(self, recorded: Mapping[str, Any], run: str) -> Params | None:
        """params.yaml with what was ``recorded`` of ``run``; None if too little was."""
        kinds = _kinds(recorded, run)
        if not kinds:
            return None
        past = {k: dict(v) if isinstance(v, dict) else v for k, v in self.tree.items()}
        past["evals"] = {}
        past["members"] = {
            key: member
            for key, member in past["members"].items()
            if f"ensembles.{member['ensemble']}" not in recorded
        }
        for key, value in recorded.items():
            section, _, name = key.partition(".")
            if section in DESCRIBE:
                past[section][name] = _infinite(value)
        for kind in CLASSIFIERS:  # a name may have been of another kind
            if kind not in kinds:
                past[kind].pop(run, None)
        try:
            found = parse(past, Params, where=str(PARAMS))
            found.classifiers()
        except (ConfigError, KeyError):  # recorded by another version, or not all of it
            return None
        return found

    def _parts(self, run: str) -> tuple[str, int | None]:
        """The name of a classifier and, of a prefix of an ensemble, how many members it has."""
        return (run, None) if run in self.whole.classifiers() else prefixes.parts(run)


def _older(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Reasons, one for each stage."""
    return [f"{stage} ran on an older {path}" for stage, path in dict(reversed([*pairs])).items()]


def _file(run: str, backend: str) -> str:
    return f"onnx/{run}.onnx" if backend == "onnx" else f"models/{run}"


def _kinds(recorded: Mapping[str, Any], run: str) -> list[str]:
    return [kind for kind in CLASSIFIERS if f"{kind}.{run}" in recorded]


def _infinite(node: Any) -> Any:
    """The inverse of `finite`."""
    if isinstance(node, dict):
        return {key: _infinite(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_infinite(value) for value in node]
    return INFINITE.get(node, node) if isinstance(node, str) else node


def _agree(table: pd.DataFrame, found: Votes, level: Mapping[str, Any]) -> bool:
    """Whether certificates are those of votes."""
    try:
        made = certify.certify(*found, **level)
    except RrcmError:
        return False
    return len(made) == len(table) and np.allclose(made[COMPARED], table[COMPARED], atol=1e-9)
