"""Chooses the learning rate and one more constant of each method on the choice split.

``python -m benchmarks.choose`` works on the current params.yaml, the preset `digits`,
`fashion-mnist`, `cifar10-cpu` or `cifar10-all`, whose shards and first pre-training `rrcm repro`
must have made. For each method, it compares learning rates (``RATES``) at the first sigma, with the
first value of one more constant (``OTHERS``); then, at the best rate and at each sigma, the values
of that constant. Every method has the same number of candidates, varied from its first run at a
sigma. A candidate is trained as by the stage `train`, exported, and certified on ``shards/choice``
as by `sample` and `certify`. Its score is the mean of its certified accuracy over
``report.radii``; the first of equals wins. The test split is not read. With ``--epochs`` every
candidate is trained for so many.

Finished candidates are kept in ``.rrcm/benchmarks/choose``, so that a stopped search resumes.
"""

import argparse
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.runtime.training import data_digests
from rrcm.analysis.estimation.statistics import certified
from rrcm.analysis.presentation import markup
from rrcm.certification import certify
from rrcm.certification.sampling import drawing, store
from rrcm.certification.votes import records
from rrcm.certification.votes.records import Header
from rrcm.config import params
from rrcm.config.params import Params
from rrcm.config.sections import NONE, Model, Recipe, Run
from rrcm.core import progress, registry
from rrcm.core.files import sha256
from rrcm.data.splits import shards
from rrcm.data.splits.shards import Split
from rrcm.inference.export import export
from rrcm.models.trained.base import classifier
from rrcm.training.engine import distributed
from rrcm.training.finetune import start, train

KEPT = Path(".rrcm/benchmarks/choose")
DRAWS = {  # per image at most: no candidate is certified beyond some 2 sigma, or 2.4
    "digits": 300,
    "fashion_mnist": 300,
    "cifar10": 1000,
}
RATES = {
    "digits": [1.5e-3, 3e-3, 6e-3],
    "fashion_mnist": [1.5e-3, 3e-3, 6e-3, 1.2e-2],
    "cifar10": [0.1, 0.2, 0.4],
}
Other = tuple[str, dict[float, list[float]]]
DECAY: Other = ("weight_decay", {sigma: [0.1, 0.01] for sigma in (0.25, 0.5, 1.0)})
LBD: Other = ("lbd", {sigma: [3.0, 10.0] for sigma in (0.25, 0.5, 1.0)})
SHORT: Other = ("lbd", {0.25: [3.0, 1.0], 0.5: [3.0, 6.0]})
OTHERS: dict[str, dict[str, Other]] = {  # data set -> method -> a constant of its loss or of the
    "digits": {  # optimizer, and its values by sigma
        "gaussian": ("weight_decay", {0.25: [0.1, 0.01], 0.5: [0.1, 0.01]}),
        "consistency": SHORT,
        "rrcm": SHORT,
    },
    "fashion_mnist": {"gaussian": DECAY, "consistency": LBD, "rrcm": LBD},
    "cifar10": {
        "gaussian": ("weight_decay", {0.25: [5e-4, 2e-3]}),
        "consistency": ("lbd", {0.25: [10.0, 20.0]}),
        "stability": ("lbd", {0.25: [2.0, 1.0]}),
        "macer": ("lbd", {0.25: [12.0, 4.0]}),
        "smoothadv": ("epsilon", {0.25: [0.25, 0.125]}),
        "smoothmix": ("alpha", {0.25: [0.5, 1.0]}),
    },
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A run with a learning rate and a ``value`` of the ``constant`` of its method."""

    run: str
    rate: float
    constant: str
    value: float

    def settings(self, whole: Params) -> tuple[Run, Recipe]:
        """The run and its recipe, which has the same epochs for every candidate."""
        run = whole.runs[self.run]
        recipe = whole.recipes[run.recipe]
        changed: dict[str, float] = {"lr": self.rate}
        if self.constant in run.loss:
            run = dataclasses.replace(run, loss=run.loss | {self.constant: self.value})
        else:
            changed[self.constant] = self.value
        optimizer = dataclasses.replace(recipe.optimizer, **changed)
        return run, dataclasses.replace(recipe, optimizer=optimizer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    whole, rows = params.load(), []
    methods = {run.method for run in whole.runs.values()}
    others = {name: of for name, of in OTHERS[whole.data.name].items() if name in methods}
    parser.add_argument("--method", nargs="+", choices=[*others], default=[*others])
    parser.add_argument("--epochs", type=int, help="of every candidate; default: its recipe's")
    asked = parser.parse_args()
    if asked.epochs:
        shorter = {
            name: dataclasses.replace(recipe, epochs=asked.epochs)
            for name, recipe in whole.recipes.items()
        }
        whole = dataclasses.replace(whole, recipes=shorter)
    for method in asked.method:
        rows += search(whole, method, others[method])
        print(f"\n{markup.markdown(pd.DataFrame(rows))}")


def search(whole: Params, method: str, other: Other) -> list[dict[str, Any]]:
    """All candidates of a method as rows of a table, in the order in which they were tried."""
    constant, values = other
    runs: dict[float, str] = {}
    for name, run in whole.runs.items():
        if run.method == method:
            runs.setdefault(run.sigma, name)
    tried: dict[Candidate, dict[str, float]] = {}

    def best(candidates: list[Candidate]) -> Candidate:
        for candidate in candidates:
            if candidate not in tried:
                tried[candidate] = score(whole, candidate)
        return max(candidates, key=lambda candidate: tried[candidate]["mean"])  # the first of them

    def candidate(sigma: float, rate: float, value: float) -> Candidate:
        return Candidate(run=runs[sigma], rate=rate, constant=constant, value=value)

    first = next(iter(values))
    rate = best([candidate(first, rate, values[first][0]) for rate in RATES[whole.data.name]]).rate
    chosen = {best([candidate(sigma, rate, v) for v in values[sigma]]) for sigma in values}
    return [
        {
            "run": one.run,
            "rate": f"{one.rate:g}",
            "constant": f"{one.constant} = {one.value:g}",
            **{name: f"{100 * share:.1f}" for name, share in scores.items()},
            "chosen": "yes" if one in chosen else "",
        }
        for one, scores in tried.items()
    ]


def score(whole: Params, candidate: Candidate) -> dict[str, float]:
    """Certified accuracy on the choice split at each radius of the report, and their mean."""
    header, rows = drawn(whole, candidate)
    alpha, radii = whole.certify.alpha, whole.report.radii
    table = certify.certify(header, rows, certificates=whole.certify.certificates, alpha=alpha)
    hits = {f"r = {radius:g}": int(certified(table, radius).sum()) for radius in radii}
    mean = sum(hits.values()) / (len(hits) * len(table))  # integer sums, so that ties are exact
    return {name: count / len(table) for name, count in hits.items()} | {"mean": mean}


def drawn(whole: Params, candidate: Candidate) -> tuple[Header, list[records.Row]]:
    """Train and export a candidate, and return its votes on the choice split."""
    run, recipe = candidate.settings(whole)
    model = Model(architecture=run.architecture, shape=whole.models[run.model])
    data = {name: shards.read(Path("shards"), name) for name in ("train", "validation", "choice")}
    name = f"{candidate.run}-{_key(run, recipe, model, *data)}"
    n = DRAWS[whole.data.name]
    path = KEPT / "votes" / f"{name}-n{n}.jsonl"
    if not path.exists():
        made = trained(name, run, recipe, model, data)
        exported(made, name, run, data["validation"], whole)
        device = distributed.device()
        backend = registry.load(
            "backends", whole.sample.backend if device == "cpu" else "torch"
        ).Backend(
            KEPT,
            name,
            sigma=run.sigma,
            precision="fp32",
            device=device,
            calibration=None,
        )
        cfg = dataclasses.replace(
            whole.sampling, split="choice", subset="all", n=n, precision="fp32"
        )
        header = store.header(backend, data["choice"], name, cfg)
        path.parent.mkdir(parents=True, exist_ok=True)
        drawing.run(
            backend,
            header,
            data["choice"],
            journal=path.with_suffix(".journal"),
            path=path,
            title=f"certify {candidate.run}",
        )
    return records.read(path)


def trained(name: str, run: Run, recipe: Recipe, model: Model, data: dict[str, Split]) -> Path:
    """Train a classifier as the stage `train` does, and return its folder."""
    folder = KEPT / "models" / name
    if (folder / "config.json").exists():
        return folder
    classes = data["train"].classes
    data = data | {"train": data["train"].labelled(recipe.labels, seed=run.seed)}
    state = start(run, recipe, model, classes=len(classes), device=distributed.device())
    if run.start != NONE:
        classifier.begin(state.modules["classifier"], Path(run.start))
    training = train(state, registry.load("methods", run.method), data, run, recipe)
    for _ in progress.steps(
        training, total=training.steps, start=0, title=f"train {name}", images=recipe.batch_size
    ):
        pass
    kept = {"condition": recipe.condition, "final_norm": recipe.final_norm, "sigma": run.sigma}
    classifier.save(folder, state.best, model=model, config={"classes": list(classes), **kept})
    return folder


def exported(folder: Path, name: str, run: Run, split: Split, whole: Params) -> None:
    """Write the ONNX file of a trained classifier."""
    network, kept = classifier.load(folder)
    metadata = {
        "run": name,
        "classes": kept["classes"],
        "sigma": run.sigma,
        "weights": sha256(folder / "model.safetensors"),
    }
    path = KEPT / "onnx" / f"{name}.onnx"
    folded = registry.load("folding", run.architecture).fold(network)
    export(network, folded, path, split, metadata, whole.export)


def _key(run: Run, recipe: Recipe, model: Model, *splits: str) -> str:
    """A digest of everything except the code on which a candidate's votes depend."""
    encoder = Path(run.start, "encoder.safetensors")
    found = [
        *map(dataclasses.asdict, (run, recipe, model)),
        data_digests(*splits),
        sha256(encoder) if encoder.exists() else "",
    ]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:12]


if __name__ == "__main__":
    main()
