"""``rrcm check`` validates all of params.yaml; ``rrcm status`` says where its results stand."""

import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from pipeline import checked
from pipeline.runtime.graph import SCRATCH
from pipeline.workflow import plan
from pipeline.workflow.plan import MISSING, Node
from rrcm.config.params import Params
from rrcm.core.locks import lock
from rrcm.core.schema import listed

WIDTH = 100


def check() -> str:
    """Return a summary of params.yaml.

    Raises:
        ConfigError: Something in params.yaml is wrong.
    """
    params, missing = checked.examined()
    lines = [_contents(params), *(f"not checked: {component}" for component in missing)]
    trained = (params.pretrain, params.runs, params.denoisers)
    unused = params.models.keys() - {entry.model for part in trained for entry in part.values()}
    lines += [f"not checked: models.{name}: no run has it" for name in sorted(unused)]
    return "\n".join(lines)


def _contents(params: Params) -> str:
    counts = (
        (len(params.pretrain), "pre-training"),
        (len(params.runs), "run"),
        (len(params.denoisers), "denoiser"),
        (len(params.ensembles), "ensemble"),
        (len(params.purified), "purified classifier"),
        (len(params.evals), "evaluation"),
    )
    parts = [f"{count} {noun}{'s' * (count != 1)}" for count, noun in counts if count]
    return f"params.yaml is right: {', '.join(parts) or 'nothing to train'}, of {params.data.name}"


def status() -> str:
    """Return a line for each group of stages, then one for each stage that runs.

    A stage is out of date if DVC would run it now because something changed, and not here if only
    because files are missing; it waits if only what it reads is out of date.

    Raises:
        ConfigError: params.yaml is not valid.
        StageError: DVC cannot read dvc.yaml or dvc.lock.
    """
    nodes, now = plan.load(), running()
    reasons = {node.name: node.reason for node in nodes if node.changed and node.name not in now}
    waits = _waiting(nodes, {*reasons, *now})
    for name, causes in [*waits.items()]:  # what waits for files only is not here, either
        if all(reasons.get(cause) == MISSING for cause in causes):
            reasons[name] = MISSING
            del waits[name]
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        groups.setdefault(node.name.partition("@")[0], []).append(node)
    lines = [_group(group, members, now, reasons, waits) for group, members in groups.items()]
    lines += [f"running: {name}, process {pid}" for name, pid in now.items()]
    if not (reasons or now):
        lines.append(f"all {len(nodes)} stages are up to date: `rrcm repro` has nothing to do")
    if MISSING in reasons.values():
        lines.append(
            "`rrcm pull` fetches the results that a remote or release/ has; "
            "`rrcm repro` makes the others again"
        )
    return "\n".join(part for line in lines for part in _wrapped(line))


def running() -> dict[str, int]:
    """Return the stages that run in this checkout, each with the process that holds its lock."""
    pids = {}
    for path in sorted(SCRATCH.glob("*.lock")):
        try:
            file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        if not lock(file):
            pids[path.name.removesuffix(".lock")] = int(os.pread(file, 20, 0) or 0)
        os.close(file)
    return pids


def _waiting(nodes: Sequence[Node], first: set[str]) -> dict[str, list[str]]:
    """Return the stages that wait, each with those of ``first`` that it waits for."""
    waits: dict[str, list[str]] = {}
    for node in nodes:  # nodes come after those that they need
        for name in node.upstream:
            causes = [name] if name in first else waits.get(name, [])
            if causes and node.name not in first:
                waits.setdefault(node.name, []).extend(causes)
    return {name: list(dict.fromkeys(causes)) for name, causes in waits.items()}


def _group(
    group: str,
    nodes: Sequence[Node],
    now: Mapping[str, int],
    reasons: Mapping[str, str],
    waits: Mapping[str, Sequence[str]],
) -> str:
    """Return the line of a group of stages."""
    names = [node.name for node in nodes]
    behind = {*now, *reasons, *waits}
    fresh = sum(name not in behind for name in names)
    parts = [f"{fresh if '@' in names[0] else ''} up to date".strip()] if fresh else []
    by_reason: dict[str, list[str]] = {}
    for name in names:
        if name in reasons:
            by_reason.setdefault(reasons[name], []).append(name)
    some = partial(_some, total=len(nodes))
    parts += [
        f"{some(alike)}{'' if reason == MISSING else 'out of date: '}{reason}"
        for reason, alike in by_reason.items()
    ]
    if at_work := [name for name in names if name in now]:
        parts.append(f"{some(at_work)}running")
    if waiting := [name for name in names if name in waits]:
        causes = list(dict.fromkeys(cause for name in waiting for cause in waits[name]))
        parts.append(f"{some(waiting)}waiting for {listed(causes, most=60)}")
    count = f" ({len(nodes)})" if "@" in names[0] else ""
    return f"{group + count:14} {'; '.join(parts)}"


def _some(names: Sequence[str], *, total: int) -> str:
    if len(names) == total:
        return ""
    items = [name.partition("@")[2] for name in names]
    count = f"{len(names)} " if len(names) > 1 else ""
    return f"{count}({listed(items, most=60)}) "


def _wrapped(line: str) -> Iterable[str]:
    return textwrap.wrap(line, WIDTH, subsequent_indent=" " * 15, break_on_hyphens=False)
