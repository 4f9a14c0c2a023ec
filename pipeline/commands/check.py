"""``rrcm check``: validates all of params.yaml, and lists what `dvc repro` would run."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from pipeline.repro import plan
from pipeline.repro.plan import Node, overlap
from rrcm.cli import checked
from rrcm.config.params import Params
from rrcm.core.schema import listed


def check() -> str:
    """Return a summary of params.yaml and of the stages that are out of date.

    Raises:
        ConfigError: Something in params.yaml is wrong.
        StageError: DVC cannot read dvc.yaml or dvc.lock.
    """
    whole, missing = checked.examined()
    lines = [_contents(whole), *(f"not checked: {component}" for component in missing)]
    lines += [f"not checked: models.{name}: no run has it" for name in _unused(whole)]
    return "\n".join([*lines, *_stages(plan.load(), whole)])


def _contents(whole: Params) -> str:
    counts = (
        (len(whole.pretrain), "pre-training"),
        (len(whole.runs), "run"),
        (len(whole.denoisers), "denoiser"),
        (len(whole.ensembles), "ensemble"),
        (len(whole.purified), "purified classifier"),
        (len(whole.evals), "evaluation"),
    )
    found = [f"{count} {noun}{'s' * (count != 1)}" for count, noun in counts if count]
    return f"params.yaml is right: {', '.join(found) or 'nothing to train'}, of {whole.data.name}"


def _unused(whole: Params) -> list[str]:
    """Return the models that no run names, so that no network could check their shape."""
    entries = [*whole.pretrain.values(), *whole.runs.values(), *whole.denoisers.values()]
    return [name for name in whole.models if name not in {entry.model for entry in entries}]


def _stages(nodes: Sequence[Node], whole: Params) -> list[str]:
    changed = [node for node in nodes if node.changed]
    if not changed:
        return [f"`dvc repro` has nothing to do: all {len(nodes)} stages are up to date"]
    behind, after = {node.name for node in changed}, []
    for node in nodes:  # nodes come after those that they need
        if node.name not in behind and behind.intersection(node.upstream):
            behind.add(node.name)
            after.append(node)
    counted = f"{len(changed)} of {len(nodes)} stages"
    lines = [f"`dvc repro` would run {counted}, or restore results that it has:", *_rows(changed)]
    if after:
        lines += ["and then, if what they read is another:", *_rows(after)]
    made = [path for node in nodes for path in node.outputs]
    needed = {path for node in nodes if node.name in behind for path in node.inputs}
    absent = [p for p in needed if not Path(p).exists() and not any(overlap(p, m) for m in made)]
    if absent:
        lines.append(
            f"not here: {', '.join(sorted(absent))}; fetch it with `dvc pull`, or get raw data "
            f"with `rrcm data {whole.data.name}`"
        )
    return lines


def _rows(nodes: Sequence[Node]) -> list[str]:
    """Return a line for each group of stages, with as many names as fit the terminal."""
    groups: dict[str, list[str]] = {}
    for node in nodes:
        group, _, name = node.name.partition("@")
        groups.setdefault(group, []).append(name)
    width = shutil.get_terminal_size((100, 24)).columns
    return [_row(group, names, width) for group, names in groups.items()]


def _row(group: str, names: Sequence[str], width: int) -> str:
    if names == [""]:
        return f"  {group}"
    count = f" ({len(names)})" if len(names) > 1 else ""
    head = f"  {group}{count}  "
    return head + listed(names, most=width - len(head) - 1)
