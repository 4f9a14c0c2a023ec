"""The whole of ``params.yaml``: every section, and what they owe each other."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rrcm.config import PARAMS, Data, Pretrain, Recipe, Run, require
from rrcm.errors import ConfigError
from rrcm.parsing import cast, parse, read_yaml
from rrcm.registry import suggest
from rrcm.settings import Certify, Eval, Export, Report, Sample


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """The whole file; ``stopping`` has the constants of each rule that may be asked for."""

    data: Data
    models: dict[str, dict[str, Any]]
    pretrain: dict[str, Pretrain]
    recipes: dict[str, Recipe]
    runs: dict[str, Run]
    evals: dict[str, Eval]
    export: Export
    stopping: dict[str, dict[str, Any]]
    sample: Sample
    certify: Certify
    report: Report

    def __post_init__(self) -> None:
        n, alpha = self.sample.n, self.certify.alpha
        require(
            alpha ** (1 / n) > 0.5,
            f"sample.n: {n} draws can never certify at certify.alpha = {alpha:g}; at least "
            f"{math.floor(math.log(alpha) / math.log(0.5)) + 1} can",
        )
        if self.sample.stop == "grid":  # it settles its own radii, and may leave others short
            grid = self.stopping.get("grid", {}).get("radii", [])
            known = cast(grid, list[float], where="stopping.grid.radii")
            for radius in self.report.radii:
                require(
                    radius in known,
                    f"report.radii: {radius:g} is not in stopping.grid.radii ({known}); a table "
                    "may show only radii that the rule settles",
                )


def load(path: Path = PARAMS) -> Params:
    """Read the whole file: every key known, present, typed, and every name referring to another."""
    params = parse(read_yaml(path), Params, where=str(path))
    for name, pretrain in params.pretrain.items():
        _refer(pretrain.model, params.models, f"{path}: pretrain.{name}.model", "models")
    for name, run in params.runs.items():
        _refer(run.model, params.models, f"{path}: runs.{name}.model", "models")
        _refer(run.recipe, params.recipes, f"{path}: runs.{name}.recipe", "recipes")
        starts = ["shards/train", *(f"pretrained/{p}" for p in params.pretrain), *imported()]
        _refer(run.start, starts, f"{path}: runs.{name}.start", "the starting points")
    for name, evaluation in params.evals.items():
        _refer(evaluation.run, params.runs, f"{path}: evals.{name}.run", "runs")
        known = [params.runs[evaluation.run].architecture]
        where = f"{path}: evals.{name}.architecture"
        _refer(evaluation.architecture, known, where, f"its run {evaluation.run}")
    _refer(params.sample.stop, params.stopping, f"{path}: sample.stop", "stopping")
    return params


def imported() -> list[str]:
    """What `rrcm import` has brought in, here or only as pointers to fetch: ``imported/<name>``."""
    found = [p for p in Path("imported").glob("[!.]*") if p.is_dir() or p.suffix == ".dvc"]
    return sorted({p.with_suffix("").as_posix() for p in found})


def _refer(name: str, known: Iterable[str], where: str, section: str) -> None:
    known = list(known)
    if name not in known:
        raise ConfigError(
            f"{where}: {name!r} is not in {section} ({', '.join(known)}).{suggest(name, known)}"
        )
