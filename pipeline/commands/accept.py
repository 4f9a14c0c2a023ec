"""``rrcm accept``: record in dvc.lock that a change of code changes no result.

If the code of a stage differs from that in dvc.lock, the version that it ran on is found in git and
compared with the current code; see `acceptance/comparison.py` for the guarantee. If both are the
same program, the stage's entry is written as `dvc commit` would write it, and its outputs stay as
they are, here or in a remote.
"""

import datetime
import json
import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.acceptance import history
from pipeline.acceptance.comparison import Difference, compare
from pipeline.acceptance.programs import Code, Place, Program
from pipeline.workflow import lockfile, records
from pipeline.workflow.records import Record
from rrcm.core import progress
from rrcm.core.errors import DataError, StageError
from rrcm.core.files import write_json

PATIENT = 2.0  # seconds until progress is shown


@dataclass(slots=True)
class _Findings:
    """Findings about all stages; ``files`` are pairs, old and new, with the same code."""

    same: dict[str, Record] = field(default_factory=dict)
    because: dict[str, tuple[Record, Difference | str]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    files: set[tuple[str, str]] = field(default_factory=set)


def accept(
    targets: Sequence[str] = (), *, because: str | None = None, say: Callable[[str], None]
) -> bool:
    """Accept the code of the stages that make ``targets``, and of those upstream; none means all.

    Guarantee: entries of dvc.lock are renewed only for stages that run the same program on the same
    data and parameters, or with a reason: ``because`` accepts a change of the program and new
    parameters, where all older ones have their values still, and is written to
    ``provenance/<stage>.json`` with the difference. dvc.lock is replaced atomically. A stage
    downstream of a refused one is refused.

    Returns:
        Whether the code of all these stages is up to date now.

    Raises:
        ConfigError: params.yaml is not valid.
        StageError: dvc.yaml, dvc.lock, the code or the history cannot be read, or code or dvc.lock
            changed meanwhile; nothing was written.
        DataError: The provenance file for the reason is not here; nothing was written.
    """
    if because is not None and not because.strip():
        raise StageError("--because: say why in a few words; provenance keeps them")
    found = _findings(records.load(targets), because=because is not None)
    accepted = found.same | {name: record for name, (record, _) in found.because.items()}
    _write(accepted, found.because, because or "")
    for line in _lines(found):
        say(line)
    return not found.refused


def _findings(stages: Sequence[Record], *, because: bool) -> _Findings:
    found, here = _Findings(), history.here()
    bar = progress.bar(len(stages), 0, "comparing", " stages", delay=PATIENT)
    with history.History() as past, bar:
        for stage in stages:
            waits = [name for name in stage.upstream if name in found.refused]
            changed = _is_changed(stage)
            if stage.obstacles and (changed or not waits):
                found.refused[stage.name] = "; ".join(stage.obstacles)
            elif waits and changed:
                found.refused[stage.name] = f"it comes after {waits[0]}"
            elif waits:
                found.refused[stage.name] = ""
            elif changed:
                _judge(stage, past, here, found, because=because, say=partial(_tell, bar))
            bar.update()
    return found


def _tell(bar: Any, text: str) -> None:
    bar.set_postfix_str(text, refresh=False)
    bar.update(0)


def _is_changed(stage: Record) -> bool:
    changed = stage.before != stage.now or stage.entry.get("cmd") != stage.command
    return changed or bool(stage.added)


def _judge(
    stage: Record,
    past: history.History,
    here: Code,
    found: _Findings,
    *,
    because: bool,
    say: Callable[[str], None],
) -> None:
    """Compare the program that a stage ran with the one that it would run now."""
    try:
        code, files = past.find(stage.before, say)
        old = _program(code, stage.entry["cmd"], files)
        new = _program(here, stage.command, history.within(here, stage.now))
        verdict = compare(old[0], new[0])
        difference: Difference | str | None = verdict.difference
        if old[1] != new[1]:
            commands = (stage.entry["cmd"], stage.command)
            difference = Difference(*(Place("dvc.yaml", 0, command) for command in commands))
    except StageError as error:
        difference = str(error)
    if stage.added and difference is None:
        difference = f"params.yaml has {', '.join(stage.added)}, which its program ran without"
    if difference is None:
        found.same[stage.name] = stage
        found.files |= {
            (a, b) for a, b in verdict.files if a != b or stage.before.get(a) != stage.now.get(b)
        }
    elif because:
        found.because[stage.name] = (stage, difference)
    elif isinstance(difference, str):
        found.refused[stage.name] = difference
    else:
        found.refused[stage.name] = (
            f"it runs other code\n  - {difference.old}\n  + {difference.new}"
        )


def _program(code: Code, command: str, files: Collection[str]) -> tuple[Program, list[str]]:
    """The program that a command ``python -m X`` runs, and its arguments."""
    words = shlex.split(command)
    script = f"{words[2].replace('.', '/')}.py" if len(words) > 2 else ""
    if words[:2] != ["python", "-m"] or script not in code.tree.paths:
        raise StageError(f"{command}: not `python -m` with a module of this project")
    return Program(code, script, files), words[3:]


def _write(
    accepted: dict[str, Record],
    because: dict[str, tuple[Record, Difference | str]],
    reason: str,
) -> None:
    """Write dvc.lock, and the reason to provenance, which is restored if writing fails."""
    if not accepted:
        return
    paths = {name: Path("provenance", f"{name}.json") for name in because}
    texts = {}
    for name, (record, difference) in because.items():
        if not paths[name].is_file():
            raise DataError(
                f"{paths[name]}: not here, and is to say the reason; `dvc pull {paths[name]}`"
            )
        texts[name] = (paths[name].read_bytes(), _noted(paths[name], record, difference, reason))
    try:
        for name, (_, contents) in texts.items():
            write_json(paths[name], contents)
        entries = records.renewed([*accepted], rewritten=[str(path) for path in paths.values()])
        for name, record in accepted.items():
            rows = {row["path"]: row["md5"] for row in entries[name]["deps"]}
            if {path: rows.get(path) for path in record.now} != record.now:
                raise StageError(f"{name}: its code changed meanwhile; run the same command again")
        lockfile.adopt(entries, over={name: record.entry for name, record in accepted.items()})
    except BaseException:
        for name, (before, _) in texts.items():
            write_json(paths[name], json.loads(before))
        raise


def _noted(path: Path, record: Record, difference: Difference | str, reason: str) -> dict[str, Any]:
    """The content of a provenance file with one more accepted change."""
    try:
        contents = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path}: damaged ({error}); `dvc checkout {path}`") from None
    changed = sorted(
        path
        for path in {*record.before, *record.now}
        if record.before.get(path) != record.now.get(path)
    )
    note = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "because": reason,
        "difference": difference if isinstance(difference, str) else asdict(difference),
        "new parameters": [*record.added],
        "code": {
            path: {"old": record.before.get(path), "new": record.now.get(path)} for path in changed
        },
    }
    return contents | {"accepted": [*contents.get("accepted", []), note]}


def _lines(found: _Findings) -> list[str]:
    """The lines of the output: the files once, then each stage."""
    moved: dict[str, set[str]] = {}
    for old, new in sorted(found.files):
        moved.setdefault(old, set()).add(new)
    lines = [
        f"same: {old}" + ("" if new == {old} else f" -> {', '.join(sorted(new))}")
        for old, new in moved.items()
    ]
    lines += [f"{name}: accepted, nothing that it runs differs" for name in found.same]
    lines += [f"{name}: accepted, provenance/{name}.json says why" for name in found.because]
    lines += [f"{name}: not accepted, {why}" for name, why in found.refused.items() if why]
    return lines or ["nothing to accept: every stage ran on the code that is here"]
