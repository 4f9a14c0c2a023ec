"""``rrcm accept``: a change of code was found to compute the same, and results stay as they are.

What changes only comments, docstrings or annotations needs no acceptance: see `code`.
"""

import datetime
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dvc.repo.reproduce import plan_repro
from dvc.stage import PipelineStage
from dvc.stage.serialize import to_single_stage_lockfile

from pipeline import checked
from pipeline.workflow import lockfile, plan
from pipeline.workflow.changes import MISSING, Changes
from pipeline.workflow.processes import Say
from rrcm.core.errors import StageError
from rrcm.core.files import read_json, write_json


def accept(targets: Sequence[str], *, because: str, say: Say) -> bool:
    """Accept changed code of the stages that make ``targets``, and of those upstream; none: all.

    Guarantee: entries of dvc.lock are renewed only for stages whose code differs, or whose
    parameters have new keys beside the old values, and for no stage downstream of another change.
    The reason is noted in ``provenance/<stage>.json``. dvc.lock is replaced atomically.

    Returns:
        Whether all these stages are up to date now.

    Raises:
        ConfigError: params.yaml is not valid.
        StageError: There is no reason, dvc.yaml or dvc.lock cannot be read, or a stage ran
            meanwhile; nothing was written.
        DataError: The provenance file for the reason is not here; nothing was written.
    """
    if not because.strip():
        raise StageError("--because: say why in a few words; provenance keeps them")
    checked.load()
    plan.refreshed()
    before, now, refused = lockfile.read(), dict[str, Any](), dict[str, str]()
    with ExitStack() as undo, plan.opened() as (graph, order):
        wanted = [stage for word in targets for stage in plan.meant(word, order)] or order
        needed, changes = {*plan_repro(graph, wanted)}, Changes(graph, here=True)
        above = plan.upstream(graph, order)
        for stage in (stage for stage in order if stage in needed):
            name, waits = stage.addressing, [up.addressing for up in above[stage]]
            others = {*changes.but_code(stage, but_added=True)} - {MISSING}
            new = [key for dep in stage.deps for key in changes.parameters(dep)[1]]
            differs = changes.code(stage)
            if others:
                refused[name] = "; ".join(sorted(others))
            elif (differs or new) and (first := next((w for w in waits if w in refused), "")):
                refused[name] = f"it comes after {first}"
            elif differs or new:
                note = Path("provenance", f"{name}.json")
                content = read_json(note, hint=f"; `dvc pull --force {note}` fetches it")
                undo.callback(write_json, note, content)
                code = [dep.def_path for dep in differs]
                about = {"because": because, "code": code, "new parameters": new}
                noted = [*content.get("accepted", []), {"date": today()} | about]
                write_json(note, content | {"accepted": noted})
                now[name] = _entry(stage, changes, note)
        lockfile.adopt(now, over=before)
        undo.pop_all()  # all of it was written
    lines = [f"{name}: accepted, provenance/{name}.json says why" for name in now]
    lines += [f"{name}: not accepted, {why}" for name, why in refused.items()]
    for line in lines or ["nothing to accept: every stage ran on the code that is here"]:
        say(line)
    return not refused


def today() -> str:
    """The date and time, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _entry(stage: PipelineStage, changes: Changes, note: Path) -> Any:
    """The entry that `dvc commit` would write, with the data and the other outputs as recorded."""
    for dep in stage.deps:
        if not changes.sources(dep):
            dep.save()
    for out in stage.outs:
        if out.def_path == str(note):
            out.save()
            out.commit()
    return to_single_stage_lockfile(stage)
