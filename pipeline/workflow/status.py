"""``rrcm check`` validates all of params.yaml; ``rrcm status`` says where its results stand."""

import os
import textwrap
from collections.abc import Container, Iterable
from contextlib import suppress
from functools import partial

from pipeline import checked
from pipeline.runtime.graph import SCRATCH
from pipeline.workflow import git, lockfile, plan
from pipeline.workflow.changes import MISSING
from pipeline.workflow.plan import Node
from rrcm.core.locks import lock, opened
from rrcm.core.schema import listed

WIDTH = 100
SECTIONS = ("pretrain", "runs", "denoisers", "ensembles", "purified", "evals")
FRESH, WAITS = "up to date", "waiting for stages above"


def check() -> str:
    """Return a summary of params.yaml.

    Raises:
        ConfigError: Something in params.yaml is wrong.
    """
    params = checked.load()
    counts = {section: len(getattr(params, section)) for section in SECTIONS}
    parts = [f"{section}: {count}" for section, count in counts.items() if count]
    lines = [f"params.yaml is right; data: {params.data.name}, {', '.join(parts)}"]
    trained = (params.pretrain, params.runs, params.denoisers)
    unused = params.models.keys() - {entry.model for part in trained for entry in part.values()}
    lines += [f"not checked: models.{name}: no run has it" for name in sorted(unused)]
    return "\n".join(lines)


def status() -> str:
    """Return a line for the stages that are up to date, and one for those of each other state.

    A stage is out of date if DVC would run it now because something changed, and not here if only
    because files are missing; it waits if only what it reads is out of date.

    Raises:
        ConfigError: params.yaml is not valid.
        StageError: DVC cannot read dvc.yaml or dvc.lock.
    """
    nodes, now = plan.load(), running()
    stages: dict[str, list[str]] = {}
    for name, state in states(nodes, now).items():
        stages.setdefault(state, []).append(name)
    lines = [f"{state} ({len(names)}): {listed(names)}" for state, names in stages.items()]
    lines += [f"running: {name}, process {pid}" for name, pid in now.items()]
    if stages.keys() == {FRESH} and not now:
        lines = [f"all {len(nodes)} stages are up to date: `rrcm repro` has nothing to do"]
    if str(lockfile.LOCKFILE) in git.unmerged():
        lines.insert(0, lockfile.UNMERGED)
    if MISSING in stages:
        lines.append(
            "`rrcm pull` fetches the results that a remote or release/ has; "
            "`rrcm repro` makes the others again"
        )
    indented = partial(textwrap.wrap, width=WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(part for line in lines for part in indented(line))


def states(nodes: Iterable[Node], now: Container[str]) -> dict[str, str]:
    """Return the state of each stage that does not run ``now``; nodes come after their inputs."""
    states: dict[str, str] = {}
    for node in nodes:
        above = {states.get(name, WAITS) for name in node.upstream}
        if node.name in now:
            continue
        if node.reason:
            states[node.name] = MISSING if node.reason == MISSING else f"out of date: {node.reason}"
        elif above <= {FRESH, MISSING}:
            states[node.name] = MISSING if MISSING in above else FRESH
        else:
            states[node.name] = WAITS
    return states


def running() -> dict[str, int]:
    """Return the stages that run in this checkout, each with the process that holds its lock."""
    pids = {}
    for path in sorted(SCRATCH.glob("*.lock")):
        with suppress(FileNotFoundError):  # it has ended
            file = opened(path, os.O_RDONLY)
            if not lock(file):
                pids[path.name.removesuffix(".lock")] = int(os.pread(file, 20, 0) or 0)
            os.close(file)
    return pids
