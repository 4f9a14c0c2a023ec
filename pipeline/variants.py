"""From a whole preset and what is varied of one of its runs to a params.yaml of all the variants.

A file of presets/ablations/ has an entry for each preset that it can be made of. What such an
entry changes is sorted by *part*: the ``run`` itself, or the ``model``, ``pretrain`` or ``recipe``
that the run names.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rrcm.config import require
from rrcm.errors import ConfigError
from rrcm.parsing import cast, read_yaml
from rrcm.registry import suggest

SECTIONS = {"model": "models", "pretrain": "pretrain", "recipe": "recipes", "run": "runs"}
NONE = ("denoisers", "ensembles", "members", "purified", "representations", "generations")
NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")  # DVC splits names at dots

Node = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ablation:
    """Which ``run`` of a preset is varied, and how.

    ``setting`` changes the run itself, and so all of its variants; each of ``variants`` changes
    that. Both are part -> what changes in it.
    """

    run: str
    setting: Node
    variants: dict[str, Node]


def read(path: Path) -> dict[str, Ablation]:
    """A file of presets/ablations/: the preset that is varied -> how."""
    return cast(read_yaml(path), dict[str, Ablation], where=str(path))


def compose(whole: Node, ablation: Ablation, *, where: str) -> Node:
    """The params of the run that is varied and of its variants, evaluated at the run's own sigma.

    A variant ``v`` of the run ``r`` is the run ``r-v``, with copies of its own, named so too, of
    what it changes; what it shares with ``r`` is shared, and trained once. Of ``models``,
    ``pretrain``, ``recipes`` and ``evals`` only what these runs need is kept, of `NONE` nothing,
    and all other sections of ``whole`` stay as they are.

    Args:
        whole: The contents of a whole preset.
        ablation: What is varied.
        where: The place of ``ablation``, for errors.

    Raises:
        ConfigError: A change names what the run does not have, is of another type, or changes
            nothing; or two variants are the same.
    """
    _known(ablation.run, whole["runs"], f"{where}.run", "the runs")
    names = _names(whole["runs"][ablation.run], ablation.run)
    parts = {part: whole[SECTIONS[part]][name] for part, name in names.items()}
    parts = merged(parts, ablation.setting, where=f"{where}.setting")
    made = {section: {} for section in SECTIONS.values()}
    _keep(made, names, parts)
    if (other := parts.get("pretrain", {}).get("model")) not in (None, names["model"]):
        made["models"][other] = whole["models"][other]
    evals = {
        name: evaluation
        for name, evaluation in whole["evals"].items()
        if (evaluation["run"], evaluation["sigma"]) == (ablation.run, parts["run"]["sigma"])
    }
    require(bool(evals), f"{where}.run: nothing evaluates {ablation.run} at the sigma of its own")
    made["evals"] = dict(evals)
    seen = {"the run itself": parts}
    for variant, changes in ablation.variants.items():
        place = f"{where}.variants.{variant}"
        require(bool(NAME.fullmatch(variant)), f"{place}: a name of a-z, 0-9, _ and - is needed")
        varied = merged(parts, changes, where=place)
        if twins := [name for name, other in seen.items() if other == varied]:
            raise ConfigError(f"{place}: {changes} is the same as {twins[0]}; leave it out")
        seen[variant] = varied
        renamed = _renamed(names, variant, changed={p for p in parts if parts[p] != varied[p]})
        _keep(made, renamed, _referring(varied, renamed, names))
        for name, evaluation in evals.items():
            head, found, tail = name.partition(ablation.run)
            copy = f"{head}{renamed['run']}{tail}" if found else f"{name}-{variant}"
            made["evals"][copy] = evaluation | {"run": renamed["run"]}
    made |= {section: {} for section in NONE}
    return {section: made.get(section, node) for section, node in whole.items()}


def merged(old: Any, new: Any, *, where: str) -> Any:
    """``old`` with the values of ``new`` in place of its own, level by level; lists are values.

    Raises:
        ConfigError: A key of ``new`` is not in ``old``, or a value is of another type.
    """
    if isinstance(old, list):
        require(isinstance(new, list), f"{where}: expected a list, got {new!r}")
        return new
    if not isinstance(old, dict):
        return cast(new, type(old), where=where)
    for key in cast(new, dict[str, Any], where=where):
        _known(key, old, where, "what is varied")
    return {
        key: merged(value, new[key], where=f"{where}.{key}") if key in new else value
        for key, value in old.items()
    }


def _names(run: Node, name: str) -> dict[str, str]:
    """Part -> its name; there is no ``pretrain`` where the run starts from something else."""
    names = {"model": run["model"], "recipe": run["recipe"], "run": name}
    folder, _, start = run["start"].partition("/")
    return names | ({"pretrain": start} if folder == "pretrained" else {})


def _renamed(names: dict[str, str], variant: str, *, changed: set[str]) -> dict[str, str]:
    """The parts' names in a variant: new ones for what changed, and for what names it."""
    if "model" in changed:
        changed = changed | {"pretrain"}
    return {
        part: f"{name}-{variant}" if part in changed | {"run"} else name
        for part, name in names.items()
    }


def _referring(parts: Node, renamed: dict[str, str], names: dict[str, str]) -> Node:
    """``parts`` that name each other as they are called in a variant."""
    run = parts["run"] | {"model": renamed["model"], "recipe": renamed["recipe"]}
    found = parts | {"run": run}
    if "pretrain" in names:
        run["start"] = f"pretrained/{renamed['pretrain']}"
        if renamed["model"] != names["model"]:
            found["pretrain"] = parts["pretrain"] | {"model": renamed["model"]}
    return found


def _keep(made: Node, names: dict[str, str], parts: Node) -> None:
    for part, name in names.items():
        made[SECTIONS[part]].setdefault(name, parts[part])


def _known(name: str, known: Iterable[str], where: str, what: str) -> None:
    listed = [*map(str, known)]
    if name not in listed:
        raise ConfigError(
            f"{where}: {name!r} is not in {what} ({', '.join(listed)}).{suggest(str(name), listed)}"
        )
