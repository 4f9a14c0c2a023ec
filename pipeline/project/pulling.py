"""Fetches a run, an evaluation or a pre-training from a DVC remote by its name: ``rrcm pull``.

DVC transfers the files; this module turns names into paths. After any failure, files that arrived
are kept, dvc.lock is unchanged, and the same command resumes.
"""

import os
from collections.abc import Collection, Mapping
from itertools import chain
from pathlib import Path

from pipeline.checked import load
from pipeline.project.lineage import Lock
from pipeline.project.runs import presets
from pipeline.workflow.remote import PUSH, Missing
from pipeline.workflow.remote import pull as pulled
from rrcm.config.params import Params
from rrcm.core.errors import ConfigError, StageError
from rrcm.core.registry import suggest

NOT_PULLED = ("provenance/", "metrics")  # outputs that no command needs, or that git keeps


def pull(names: list[str], *, remote: str | None) -> str:
    """Fetch the files of ``names`` into this checkout; return a summary and the next commands.

    Without names, what the remote has of dvc.lock; the rest stays missing. A remote may lack the
    checkpoints of exported classifiers, and votes; the summary then names them.

    Raises:
        ConfigError: params.yaml has no such name, or DVC no such remote.
        StageError: dvc.lock of this commit has no such result.
        DataError: The remote cannot be reached, or lacks a file.
    """
    made = Lock().outputs
    outputs = {path: digest for path, (_, digest) in made.items()}
    if not names:
        counted = pulled(outputs, remote, whatever=True)
        _tidy(outputs)
        here = sum(os.path.exists(path) for path in outputs)
        return f"{counted.removesuffix('.')}; {here} of {len(outputs)} outputs of dvc.lock are here"
    params = load()
    makers = {path: stage for path, (stage, _) in made.items()}
    paths = {path for name in names for path in wanted(name, params, makers)}
    try:
        counted = pulled({path: outputs[path] for path in sorted(paths)}, remote)
    except Missing as error:
        # A classifier is certified, and its certificates are read, without these.
        without = ("votes/", "models/") if params.sample.backend == "onnx" else ("votes/",)
        if needed := [path for path in error.files if not path.startswith(without)]:
            way, data = PUSH, params.data.name.replace("_", "-")
            if all(path.startswith("shards/") for path in needed):
                way = f"`rrcm data {data}` and `rrcm repro shard` make them, or {PUSH}"
            raise Missing(needed, error.place, way) from None
        counted = f"all but {', '.join(error.files)}, which {error.place} lacks"
    runs = {name: run for name, run in params.classifiers().items() if name in names}
    ways = [f"`rrcm certify --model {n} --sigma {r.sigma:g}` certifies it" for n, r in runs.items()]
    return "\n".join([f"{', '.join(names)}: {counted}", *ways])


def _names(params: Params) -> list[str]:
    """Everything that has a name of its own."""
    named = (params.classifiers(), params.evals, params.pretrain, params.denoisers)
    return [*chain.from_iterable(named), "report"]


def wanted(name: str, params: Params, makers: Mapping[str, str]) -> list[str]:
    """Return the outputs that belong to ``name``, of those with a stage in ``makers``.

    A run: what `rrcm certify` reads, its checkpoint, votes and certificates of its evaluations. An
    evaluation: its votes and certificates. A pre-training: its encoder. A denoiser: its network.
    ``report``: the page.

    Raises:
        ConfigError: The name is none of these.
        StageError: A stage that is needed did not run at this commit.
    """
    known = _names(params)
    if name not in known:
        having = [preset for preset, its in presets().items() if name in _names(its)]
        way = f"its runs are {', '.join(params.classifiers())}.{suggest(name, known)}"
        if having:
            way = " or ".join(f"`rrcm preset {preset}`" for preset in having) + " has it"
        raise ConfigError(
            f"{name}: params.yaml has no run, evaluation, pre-training or denoiser of this name; "
            f"{way}"
        )
    of_eval = {"sample": params.evals, "certify": params.evals}
    groups = {**of_eval, "pretrain": params.pretrain, "denoise": params.denoisers}
    needed = [f"{group}@{name}" for group, names in groups.items() if name in names]
    more, splits = set[str](), set[str]()
    if name == "report":
        needed = ["report"]
    if name in params.classifiers():
        needed += ["shard", params.maker(name)]
        evals = [key for key, one in params.evals.items() if one.run == name]
        more = {f"train@{name}", *(f"{group}@{key}" for key in evals for group in of_eval)}
        calibrated = params.sample.precision == "int8"
        splits = {"shards/validation"} if calibrated else set()
        splits |= {f"shards/{params.sample.split}"}
    if missing := [stage for stage in needed if stage not in makers.values()]:
        raise StageError(
            f"{name}: dvc.lock has no {missing[0]}: it was not made at this commit; "
            f"`rrcm repro {missing[0]}` makes it"
        )
    made_by = {*needed, *more} - {"shard"}
    of_name = (path for path, stage in makers.items() if stage in made_by)
    return sorted(splits | {path for path in of_name if not path.startswith(NOT_PULLED)})


def _tidy(outputs: Collection[str]) -> None:
    """Remove the empty folders that DVC made for files that it then did not find.

    To DVC, a folder without its files is a changed one, not a missing one.
    """
    for top in {Path(path).parts[0] for path in outputs}:
        for folder in (*Path(top).glob("*"), Path(top)):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
