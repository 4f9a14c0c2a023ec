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
REFERENCES = {  # the keys of each part that name another one, which comes before it
    "model": {},
    "recipe": {},
    "pretrain": {"model": "model"},
    "probe": {"encoder": "pretrain", "model": "model"},
    "run": {"model": "model", "recipe": "recipe", "start": "pretrain"},
}
FOLDER = "pretrained"  # of encoders, in paths
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
    these runs need are kept, of `NONE` none, and all other sections of ``preset``, a complete one,
    stay as they are. ``where`` is the place of ``ablation``, for errors.

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
        renamed, varied = _varied(own, parts, varied, variant)
        _keep(composed, renamed, varied)
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
    if folder != FOLDER:
        return names
    probes = preset["representations"].items()
    probe = next((key for key, of in probes if of["encoder"] == run["start"]), None)
    return names | {"pretrain": start} | ({"probe": probe} if probe else {})


def _starting(names: dict[str, str], run: Node) -> dict[str, str]:
    """Return ``names`` without the pre-training if ``run``, as changed, does not start from it."""
    kept = run["start"] == f"{FOLDER}/{names.get('pretrain')}"
    return {part: name for part, name in names.items() if kept or part not in PRETRAINED}


def _varied(names: dict[str, str], before: Node, parts: Node, variant: str) -> tuple[Node, Node]:
    """Return the names and contents of the parts of a variant, by part.

    The run, changed parts and those that refer to one of them have new names.
    """
    renamed, varied = Node(), Node()
    for part, references in REFERENCES.items():
        if part in names:
            other = {key: of for key, of in references.items() if renamed.get(of) != names.get(of)}
            new = part == "run" or other or parts[part] != before[part]
            renamed[part] = f"{names[part]}-{variant}" if new else names[part]
            varied[part] = parts[part] | {
                key: f"{FOLDER}/{renamed[of]}" if of == "pretrain" else renamed[of]
                for key, of in other.items()
            }
    return renamed, varied


def _keep(composed: Node, names: dict[str, str], parts: Node) -> None:
    for part, name in names.items():
        composed[SECTIONS[part]].setdefault(name, parts[part])
