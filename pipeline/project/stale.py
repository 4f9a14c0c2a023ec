"""Finds the parameters that results and classifiers were made with, and compares params.yaml.

Every command that shows a run by its name describes it by its own record: outputs of the graph by
dvc.lock, the classifier of other votes by ``params`` in its ONNX file or config.json. A result is
stale if params.yaml differs from its record.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from pipeline import checked
from pipeline.project.differences import differences, listed
from pipeline.project.lineage import Lock
from pipeline.project.variants import merged
from pipeline.runtime.without_dvc import md5, tree
from rrcm.analysis import entries
from rrcm.analysis.entries import Entry
from rrcm.certification import certify
from rrcm.certification.votes import records
from rrcm.certification.votes.records import Header
from rrcm.cli.project import Described
from rrcm.config.certification import Eval
from rrcm.config.params import Params
from rrcm.config.sections import PARAMS, Run
from rrcm.core import registry
from rrcm.core.errors import BackendError, ConfigError, RrcmError
from rrcm.core.schema import parse, read_yaml

CLASSIFIERS = ("runs", "ensembles", "purified")
DESCRIBE = (*CLASSIFIERS, "members", "models", "recipes", "pretrain", "denoisers")
OF_PAGE = ("certify", "data", "evals", "report")  # sections whose values are on the report's page
PAGE = Path("report/index.html")
IDENTITY = attrgetter("model", "method", "sigma")
INFINITE = {".inf": float("inf"), "-.inf": float("-inf")}


class Present:
    """The current params.yaml and dvc.lock, read once; an RrcmError if one of them is damaged."""

    def __init__(self) -> None:
        self.params = checked.load()
        self.tree = read_yaml(PARAMS)
        self.lock = Lock()
        self._about = cache(_about)

    def evaluations(self, names: Iterable[str]) -> list[Entry]:
        """Return the certificates of evaluations, described by their records, in report order.

        Raises:
            RrcmError: Certificates are missing or damaged, or their votes are damaged.
        """
        return entries.ordered([self._evaluation(name) for name in names])

    def classifier(self, header: Header) -> Described:
        """Describe the classifier with these votes, if its file is here."""
        recorded, missing = self._record(header)
        return self._described(header.run, recorded, missing)

    def asked(self, run: str, *, backend: str) -> Described:
        """Describe a classifier of params.yaml from its file.

        Guarantee: its model, method and sigma are those of params.yaml. All other differences, of
        the data too, are in ``stale``.

        Raises:
            BackendError: Its file is for another model, method or sigma, or has no record.
            RrcmError: Its file is missing or damaged.
        """
        file, maker = _file(run, backend), self.params.maker(run)
        way = f"`rrcm repro {maker}` makes it anew"
        recorded = self._about(run, backend)["params"]
        if not _kinds(recorded, run):
            raise BackendError(f"{file} does not say what {run} was made with; {way}")
        described, now = self._described(run, recorded, []), self.params.classifiers()[run]
        if IDENTITY(described) != IDENTITY(now):
            raise BackendError(
                f"{file} is not the {run} of params.yaml: {listed(described.stale)}; {way}, or "
                "undo the edit of params.yaml"
            )
        data = {"data": read["data"]} if (read := self.lock.params("shard")) else {}
        stale = (*described.stale, *differences(data, self.tree))
        return dataclasses.replace(described, stale=stale)

    def page(self) -> tuple[str, ...]:
        """Return how the report's page differs from params.yaml and the certificates here."""
        read = self.lock.params("report")
        changed = differences({key: read[key] for key in OF_PAGE if key in read}, self.tree)
        files = {path.name: md5(path) for path in Path("certificates").glob("*.csv")}
        if read and self.lock.read("report", Path("certificates")) != tree(files):
            changed = (*changed, "it is of other certificates than those here")
        return changed

    def _evaluation(self, name: str) -> Entry:
        path, drawn = Path(f"certificates/{name}.csv"), Path(f"votes/{name}.jsonl")
        table, line, votes = certify.read(path), self.lock.lineage(path), None
        if line is None:
            recorded, reasons = {}, [f"dvc.lock does not say how {path} was made"]
        else:
            recorded, older = line
            reasons = [f"{stage} ran on an older {path}" for stage, path in older.items()]
            if drawn.exists() and self.lock.read(f"certify@{name}", drawn) == md5(drawn):
                votes = records.read(drawn)
            elif drawn.exists():
                reasons = [*reasons, f"{path} is not of the votes in {drawn}"]
        asked = recorded.get(f"evals.{name}", {"run": name, "sigma": None})
        level = recorded.get("certify", {"alpha": None, "certificates": ["cohen"]})
        stale = (*differences(recorded, self.tree), *reasons)
        past = self._past(recorded, asked["run"])
        if past is None:
            entry = Entry(
                name=name,
                model="",
                method=asked["run"],
                sigma=asked["sigma"],
                table=table,
                alpha=None,
                votes=votes,
            )
            stale = stale or (f"dvc.lock does not say how {asked['run']} was made",)
        else:
            only = dataclasses.replace(past, evals={name: Eval(**asked)})
            (entry,) = entries.entries(only, {name: table}, {name: votes} if votes else {})
        return dataclasses.replace(
            entry, alpha=level["alpha"], certificate=level["certificates"][0], stale=stale
        )

    def _record(self, header: Header) -> tuple[dict[str, Any], list[str]]:
        """Return the record of the classifier of votes, from its file, or why there is none.

        Its weights identify it; but votes in fp16 and int8 have the digest of the converted
        network, which is not converted again for this.
        """
        try:
            about = self._about(header.run, header.backend)
        except RrcmError:
            return {}, [f"nothing here says how {header.run} was made"]
        converted = header.backend == "onnx" and header.precision != "fp32"
        if about["weights"] != header.weights and not converted:
            file = _file(header.run, header.backend)
            return {}, [f"the votes are not of the {file} that is here"]
        return about["params"], []

    def _described(self, run: str, recorded: dict[str, Any], missing: list[str]) -> Described:
        stale = (*differences(recorded, self.tree), *missing)
        past = self._past(recorded, run)
        if past is None:
            return Described(method=run, stale=stale or (f"nothing here says how {run} was made",))
        was: Run = past.classifiers()[run]
        return Described(
            model=was.model, method=was.method, sigma=was.sigma, seed=was.seed, stale=stale
        )

    def _past(self, recorded: Mapping[str, Any], run: str) -> Params | None:
        """Return params.yaml with the sections ``recorded`` for ``run``; None if it lacks any.

        Keys that are newer than the record have their present values.
        """
        kinds = _kinds(recorded, run)
        if not kinds:
            return None
        for completed in (False, True):
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
                    now = past[section].get(name) if completed else None
                    past[section][name] = _infinite(merged(now, value))
            for kind in CLASSIFIERS:  # the name may have belonged to another kind
                if kind not in kinds:
                    past[kind].pop(run, None)
            with suppress(ConfigError, LookupError):  # recorded by another version, or incompletely
                params = parse(past, Params, where=str(PARAMS))
                params.classifiers()
                return params
        return None


def _about(run: str, backend: str) -> dict[str, Any]:
    return registry.load("backends", backend).about(Path("."), run)


def _file(run: str, backend: str) -> str:
    return f"onnx/{run}.onnx" if backend == "onnx" else f"models/{run}"


def _kinds(recorded: Mapping[str, Any], run: str) -> list[str]:
    return [kind for kind in CLASSIFIERS if f"{kind}.{run}" in recorded]


def _infinite(node: Any) -> Any:
    """Invert `finite`."""
    if isinstance(node, dict):
        return {key: _infinite(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_infinite(value) for value in node]
    return INFINITE.get(node, node) if isinstance(node, str) else node
