"""Puts dvc.lock together after git merged two branches: ``rrcm resolve``.

git merges lines, but an entry of dvc.lock is true only as a whole: inputs, and what was made of
them. So no line of a merged file is used. The entry of each stage comes whole from a version of the
file that git has: that of either side, or an earlier one.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dvc.dependency.param import ParamsDependency
from dvc.stage import PipelineStage
from dvc.stage.loader import StageLoader

from pipeline.runtime import code
from pipeline.workflow import git, lockfile, plan
from pipeline.workflow.changes import Changes
from pipeline.workflow.lockfile import LOCKFILE, RESULTS
from rrcm.core.errors import DataError, StageError
from rrcm.core.files import atomic
from rrcm.core.schema import listed

OURS, THEIRS = "our side", "the other side"
INDEX = {":2:": OURS, ":3:": THEIRS, ":1:": "before both"}  # of git, until a merge is over
HEADS = ("HEAD", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD", "refs/stash")
MARKERS = re.compile(r"^(<{7}|>{7}|={7}|\|{7})( |$)", flags=re.MULTILINE)  # of a conflict in git
HISTORY = 10  # earlier versions that are looked at, from the newest

Version = tuple[str, Mapping[str, Any]]  # where it is, and its entries


def resolve() -> str:
    """Give each stage the nearest entry that was made of the inputs that are here; say which.

    Inputs are the command, code, parameters and data of the stage as they are now; data of other
    stages are those of the new entries. A stage of which no version has such an entry keeps the
    nearest one, and runs again. Nothing is removed from the cache. What git could not merge of
    dvc.lock, code/ and the metrics is then whole, and git is told so.

    Raises:
        StageError: Another file has conflict markers, or there is no whole version of dvc.lock.
    """
    unmerged = git.unmerged()
    results = [name for name in unmerged if name.startswith(RESULTS)]
    described = [name for name in unmerged if name.startswith(f"{code.FOLDER}/")]
    for name in {*unmerged} - {*results, *described}:
        if Path(name).is_file() and MARKERS.search(Path(name).read_text(errors="replace")):
            raise StageError(
                f"{name}: has conflict markers; resolve them first, because a result counts by "
                "the inputs that are here"
            )
    versions = [*_versions(merged=str(LOCKFILE) in unmerged)]
    if not versions:
        raise StageError(
            f"{LOCKFILE}: git has no whole version of it; remove it, and `rrcm repro` makes what "
            "DVC's cache lacks"
        )
    known = {**dict(versions[:2][-1][1]), **versions[0][1]}
    with lockfile.edited(anew=known):  # beside a damaged file, DVC reads no graph
        pass
    if described:
        _settle(code.STAGE_FILE.with_suffix(".lock"), (":2:", ":3:"))
        plan.refreshed()
    with plan.opened() as (graph, order):
        changes, places = Changes(graph, here=False), dict[str, str]()
        for stage in order:
            place = _place(stage, versions, changes, known)
            above = [up.addressing for up in order if graph.has_edge(stage, up)]
            places[stage.addressing] = place if all(places[name] for name in above) else ""
        in_git = [one.addressing for one in order if not all(out.use_cache for out in one.outs)]
    with lockfile.edited(anew={name: known[name] for name in places if name in known} | known):
        pass
    sides = (":3:", ":2:") if THEIRS in map(places.get, in_git) else (":2:", ":3:")
    for name in {*results} - {str(LOCKFILE)}:
        _settle(Path(name), sides)
    if unmerged := [*results, *described]:
        git.run("add", "--all", "--", *unmerged)
    return _summary(places)


def _versions(*, merged: bool) -> Iterator[Version]:
    """All whole versions of dvc.lock, the nearest first; not that here, if git ``merged`` it."""
    heads = [name for name in HEADS if git.attempt("rev-parse", "--verify", "--quiet", name)]
    log = ("log", "--full-history", "--format=%h", f"--max-count={HISTORY}", *heads)
    earlier = (git.attempt(*log, "--", str(LOCKFILE)) or "").split() if heads else []

    def text(prefix: str) -> str:
        return (git.contents(f"{prefix}./{LOCKFILE}") or b"").decode(errors="replace")

    usable = LOCKFILE.is_file() and not merged
    texts = {LOCKFILE.read_text(errors="replace") if usable else "": "this file"}
    for prefix, place in INDEX.items():
        texts.setdefault(text(prefix), place)
    for commit in (*heads, *earlier):
        texts.setdefault(text(f"{commit}:"), commit)
    for content, place in texts.items():
        with suppress(DataError):
            yield place, lockfile.parsed(content)


def _place(
    stage: PipelineStage, versions: Sequence[Version], changes: Changes, known: dict[str, Any]
) -> str:
    """Put the entry of a stage into ``known``, and into the graph; return whose it is.

    Stages upstream have theirs. The result is empty if no version has one with the present inputs.
    """
    name = stage.addressing
    for place, stages in versions:
        if name in stages:
            _fill(stage, stages[name])
            whole = all(out.hash_info for out in stage.outs)
            if whole and not (stage.changed_stage() or any(map(changes.in_input, stage.deps))):
                known[name] = stages[name]
                return place
    _fill(stage, known.get(name, {}))
    return ""


def _fill(stage: PipelineStage, entry: Mapping[str, Any]) -> None:
    """Make ``entry`` what the graph has of a stage; DVC would keep parameters that it lacks."""
    for dep in stage.deps:
        if isinstance(dep, ParamsDependency):
            dep.hash_info = type(dep.hash_info)()
    stage.cmd_changed = entry.get("cmd") != stage.cmd
    StageLoader.fill_from_lock(stage, {"cmd": "", **entry})


def _settle(path: Path, sides: Sequence[str]) -> None:
    """Write the version of the first of ``sides`` that has the file, which git could not merge."""
    for side in sides:
        if (content := git.contents(f"{side}./{path.as_posix()}")) is not None:
            with atomic(path) as part:
                part.write_bytes(content)
            return


def _summary(places: Mapping[str, str]) -> str:
    counts = Counter(filter(None, places.values()))
    found = ", ".join(f"{count} of {place}" for place, count in counts.items())
    lines = [f"{LOCKFILE}: entries with the inputs that are here: {found or 'none'}"]
    if lacking := [name for name, place in places.items() if not place]:
        lines.append(f"no version has {listed(lacking)}: `rrcm repro` makes what is missing")
    return "\n".join([*lines, "`rrcm pull` fetches what was made elsewhere; then `rrcm repro`"])
