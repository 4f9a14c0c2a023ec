"""Fetches a run, an evaluation or a pre-training from a DVC remote by its name: ``rrcm pull``.

DVC transfers the files; this module turns names into paths. After any failure, files that arrived
are kept, dvc.lock is unchanged, and the same command resumes.
"""

import os
from collections.abc import Collection
from pathlib import Path

from pipeline.checked import load
from pipeline.project.lineage import Lock
from pipeline.project.runs import presets
from pipeline.workflow.pull import PUSH, Missing
from pipeline.workflow.pull import pull as pulled
from rrcm.config.params import Params
from rrcm.core.errors import ConfigError, StageError
from rrcm.core.registry import suggest


def pull(names: list[str], *, remote: str | None) -> str:
    """Fetch the files of ``names`` into this checkout; return a summary and the next commands.

    Without names, what the remote has of dvc.lock; the rest stays missing. A remote may lack the
    checkpoints of exported classifiers, and votes; the summary then names them.

    Raises:
        ConfigError: params.yaml has no such name, or DVC no such remote.
        StageError: dvc.lock of this commit has no such result.
        DataError: The remote cannot be reached, or lacks a file.
    """
    outputs = {path: digest for path, (_, digest) in Lock().outputs.items()}
    if not names:
        counted = pulled(outputs, remote, whatever=True)
        _tidy(outputs)
        here = sum(os.path.exists(path) for path in outputs)
        return f"{counted.removesuffix('.')}; {here} of {len(outputs)} outputs of dvc.lock are here"
    params = load()
    paths = {path for name in names for path in wanted(name, params, outputs)}
    try:
        counted = pulled({path: outputs[path] for path in sorted(paths)}, remote)
    except Missing as error:
        if needed := [path for path in error.files if not _dispensable(path, params)]:
            raise Missing(needed, error.place, _way(needed, params)) from None
        counted = f"all but {', '.join(error.files)}, which {error.place} lacks"
    runs = {name: run for name, run in params.classifiers().items() if name in names}
    ways = [f"`rrcm certify --model {n} --sigma {r.sigma:g}` certifies it" for n, r in runs.items()]
    return "\n".join([f"{', '.join(names)}: {counted}", *ways])


def _dispensable(path: str, params: Params) -> bool:
    """Whether a classifier is certified, and its certificates are read, without this output."""
    checkpoint = path.startswith("models/") and params.sample.backend == "onnx"
    return checkpoint or path.startswith("votes/")


def _way(needed: list[str], params: Params) -> str:
    if all(path.startswith("shards/") for path in needed):
        data = params.data.name.replace("_", "-")
        return f"`rrcm data {data}` and `rrcm repro shard` make them, or {PUSH}"
    return PUSH


def _names(params: Params) -> list[str]:
    """Everything that has a name of its own."""
    return [
        *params.classifiers(),
        *params.evals,
        *params.pretrain,
        *params.denoisers,
        "report",
    ]


def wanted(name: str, params: Params, outputs: Collection[str]) -> list[str]:
    """Return the outputs that belong to ``name``, among ``outputs``, those in dvc.lock.

    A run: the files that `rrcm certify` reads, votes and certificates of its evaluations. An
    evaluation: its votes and certificates. A pre-training: its encoder. A denoiser: its network.
    ``report``: the page.

    Raises:
        ConfigError: The name is none of these.
        StageError: dvc.lock lacks an output that is needed.
    """
    runs, known = params.classifiers(), _names(params)
    if name not in known:
        having = [preset for preset, its in presets().items() if name in _names(its)]
        way = f"its runs are {', '.join(runs)}.{suggest(name, known)}"
        if having:
            way = " or ".join(f"`rrcm preset {preset}`" for preset in having) + " has it"
        raise ConfigError(
            f"{name}: params.yaml has no run, evaluation, pre-training or denoiser of this name; "
            f"{way}"
        )
    needed: dict[str, str] = {}  # path -> the stage that makes it
    if name in runs:
        needed[f"onnx/{name}.onnx"] = params.maker(name)
        needed[f"shards/{params.sample.split}"] = "shard"
        if params.sample.precision == "int8":
            needed["shards/validation"] = "shard"
    if name in params.evals:
        needed |= {path: f"certify@{name}" for path in _results(name)}
    if name in params.pretrain:
        needed[f"pretrained/{name}/encoder.safetensors"] = f"pretrain@{name}"
    if name in params.denoisers:
        for file in ("config.json", "model.safetensors"):
            needed[f"denoisers/{name}/{file}"] = f"denoise@{name}"
    if name == "report":
        needed["report"] = "report"
    for path, stage in needed.items():
        if path not in outputs:
            raise StageError(
                f"{name}: dvc.lock has no {path}: it was not made at this commit; "
                f"`rrcm repro {stage}` makes it"
            )
    more = [path for path in outputs if path.startswith((f"models/{name}/", f"pretrained/{name}/"))]
    more += [
        p for k, e in params.evals.items() if e.run == name for p in _results(k) if p in outputs
    ]
    return sorted({*needed, *more})


def _results(evaluation: str) -> tuple[str, str]:
    return f"votes/{evaluation}.jsonl", f"certificates/{evaluation}.csv"


def _tidy(outputs: Collection[str]) -> None:
    """Remove the empty folders that DVC made for files that it then did not find.

    To DVC, a folder without its files is a changed one, not a missing one.
    """
    for top in {Path(path).parts[0] for path in outputs}:
        for folder in (*Path(top).glob("*"), Path(top)):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
