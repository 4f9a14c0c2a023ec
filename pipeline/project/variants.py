"""Composes an ablation: a params.yaml with variants of one run of a complete preset.

A file of presets/ablations/ has an entry for each preset that it can vary. The changes of an entry
are grouped by *part*: the ``run`` itself, the ``model``, ``pretrain`` or ``recipe`` that the run
names, or the first ``probe`` of its pre-training, an entry of ``representations``.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rrcm.core.errors import ConfigError
from rrcm.core.ranges import require
from rrcm.core.schema import cast, read_yaml

SECTIONS = {
    "model": "models",
    "pretrain": "pretrain",
    "recipe": "recipes",
    "run": "runs",
    "probe": "representations",
}
PRETRAINED = ("pretrain", "probe")  # parts of a run that starts from a pre-training
NONE = ("denoisers", "ensembles", "members", "purified", "generations")

Node = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ablation:
    """The ``run`` of a preset that is varied, and its variants.

    ``setting`` changes the run itself, and so all of its variants; each of ``variants`` makes
    further changes. Both map a part to its changed values.
    """

    run: str
    setting: dict[str, Node]
    variants: dict[str, dict[str, Node]]


def read(path: Path) -> dict[str, Ablation]:
    """Read a file of presets/ablations/: the name of a preset -> its ablation."""
    return cast(read_yaml(path), dict[str, Ablation], where=str(path))


def compose(preset: Node, ablation: Ablation, *, where: str) -> Node:
    """Return the params of the varied run and of its variants, evaluated at the run's own sigma.

    A variant ``v`` of the run ``r`` is the run ``r-v``. Parts that it changes are copied, with the
    same suffix; parts that it does not change are shared with ``r``, and trained once. Of
    ``models``, ``pretrain``, ``recipes``, ``representations`` and ``evals`` only the entries that
    these runs need are kept, of `NONE` none, and all other sections of ``preset`` stay as they are.

    Args:
        preset: The contents of a complete preset.
        ablation: The run and its variants.
        where: The place of ``ablation``, for errors.

    Raises:
        ConfigError: There is no such run, or none of its parts is what is changed; or two variants
            are the same. Changed values are not checked.
    """
    runs = preset["runs"]
    require(ablation.run in runs, f"{where}.run: {ablation.run!r} is none of {', '.join(runs)}")
    names = _names(preset, ablation.run)
    parts = {part: preset[SECTIONS[part]][name] for part, name in names.items()}
    for changes in (ablation.setting, *ablation.variants.values()):
        if unknown := [part for part in changes if part not in parts]:
            raise ConfigError(f"{where}: {unknown[0]!r} is none of {', '.join(parts)}")
    parts = merged(parts, ablation.setting)
    names = _starting(names, parts["run"])
    composed = {section: {} for section in SECTIONS.values()}
    _keep(composed, names, parts)
    if (other := parts.get("pretrain", {}).get("model")) not in (None, names["model"]):
        composed["models"][other] = preset["models"][other]
    evals = {
        name: evaluation
        for name, evaluation in preset["evals"].items()
        if (evaluation["run"], evaluation["sigma"]) == (ablation.run, parts["run"]["sigma"])
    }
    require(bool(evals), f"{where}.run: nothing evaluates {ablation.run} at the sigma of its own")
    composed["evals"] = dict(evals)
    seen = {"the run itself": parts}
    for variant, changes in ablation.variants.items():
        varied = merged(parts, changes)
        if twins := [name for name, other in seen.items() if other == varied]:
            raise ConfigError(f"{where}.variants.{variant}: the same as {twins[0]}; leave it out")
        seen[variant] = varied
        own = _starting(names, varied["run"])
        renamed = _renamed(own, variant, changed={p for p in parts if parts[p] != varied[p]})
        _keep(composed, renamed, _referring(varied, renamed, own))
        for name, evaluation in evals.items():
            head, named, tail = name.partition(ablation.run)
            copy = f"{head}{renamed['run']}{tail}" if named else f"{name}-{variant}"
            composed["evals"][copy] = evaluation | {"run": renamed["run"]}
    composed |= {section: {} for section in NONE}
    return {section: composed.get(section, node) for section, node in preset.items()}


def merged(old: Any, new: Any) -> Any:
    """Return ``new``; of two mappings, ``old`` with the values of ``new``, recursively."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return old | {key: merged(old.get(key), value) for key, value in new.items()}


def _names(preset: Node, name: str) -> dict[str, str]:
    """Return the name of each part; ``pretrain`` only if the run starts from a pre-training."""
    run = preset["runs"][name]
    names = {"model": run["model"], "recipe": run["recipe"], "run": name}
    folder, _, start = run["start"].partition("/")
    if folder != "pretrained":
        return names
    probes = preset["representations"].items()
    probe = next((key for key, of in probes if of["encoder"] == run["start"]), None)
    return names | {"pretrain": start} | ({"probe": probe} if probe else {})


def _starting(names: dict[str, str], run: Node) -> dict[str, str]:
    """Return ``names`` without the pre-training if ``run``, as changed, does not start from it."""
    kept = run["start"] == f"pretrained/{names.get('pretrain')}"
    return {part: name for part, name in names.items() if kept or part not in PRETRAINED}


def _renamed(names: dict[str, str], variant: str, *, changed: set[str]) -> dict[str, str]:
    """Return the parts' names in a variant: new ones for changed parts and those that name them."""
    if "model" in changed:
        changed = changed | {"pretrain"}
    if "pretrain" in changed:
        changed = changed | {"probe"}
    return {
        part: f"{name}-{variant}" if part in changed | {"run"} else name
        for part, name in names.items()
    }


def _referring(parts: Node, renamed: dict[str, str], names: dict[str, str]) -> Node:
    """Return ``parts`` with their references to each other renamed for a variant."""
    run = parts["run"] | {"model": renamed["model"], "recipe": renamed["recipe"]}
    referring = parts | {"run": run}
    if "pretrain" in names:
        run["start"] = f"pretrained/{renamed['pretrain']}"
        if renamed["model"] != names["model"]:
            referring["pretrain"] = parts["pretrain"] | {"model": renamed["model"]}
    if "probe" in names:
        of = {"encoder": run["start"], "model": renamed["model"]}
        referring["probe"] = parts["probe"] | of
    return referring


def _keep(composed: Node, names: dict[str, str], parts: Node) -> None:
    for part, name in names.items():
        composed[SECTIONS[part]].setdefault(name, parts[part])
