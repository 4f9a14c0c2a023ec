"""``rrcm accept``: record in dvc.lock that a change of code changes no result.

If the code of a stage differs from that in dvc.lock, the version that it ran on is found in git and
compared with the current code; see code_versions.py for the guarantee. If both are the same, the
stage's entry is written as `dvc commit` would write it, and its outputs stay as they are, here or
in a remote.
"""

import datetime
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.project import code_versions
from pipeline.project.code_versions import History
from pipeline.workflow import git, lockfile, records
from pipeline.workflow.records import Record
from rrcm.core import progress
from rrcm.core.errors import DataError, StageError
from rrcm.core.files import write_json

PATIENT = 2.0  # seconds until progress is shown


@dataclass(slots=True)
class _Verdicts:
    """Stages by verdict, and why not the same; without a reason those that need no verdict."""

    same: dict[str, Record] = field(default_factory=dict)
    because: dict[str, tuple[Record, str]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def accept(
    targets: Sequence[str] = (), *, because: str | None = None, say: Callable[[str], None]
) -> bool:
    """Accept the code of the stages that make ``targets``, and of those upstream; none means all.

    Guarantee: entries of dvc.lock are renewed only for stages that run the same code on the same
    data and parameters, or with a reason: ``because`` accepts a change of the code and new
    parameters, where all older ones have their values still, and is noted in
    ``provenance/<stage>.json``. dvc.lock is replaced atomically. A stage downstream of a refused
    one is refused.

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
    verdicts = _judged(records.load(targets), because=because is not None)
    accepted = verdicts.same | {name: record for name, (record, _) in verdicts.because.items()}
    _write(accepted, verdicts.because, because or "")
    for line in _lines(verdicts):
        say(line)
    return not verdicts.refused


def _judged(stages: Sequence[Record], *, because: bool) -> _Verdicts:
    verdicts = _Verdicts()
    bar = progress.bar(len(stages), 0, "comparing", " stages", delay=PATIENT)
    with git.Blobs() as blobs, bar:
        history = History(blobs)
        for stage in stages:
            waits = [name for name in stage.upstream if name in verdicts.refused]
            command = stage.entry.get("cmd")
            changed = stage.before != stage.now or command != stage.command or bool(stage.added)
            if stage.obstacles and (changed or not waits):
                verdicts.refused[stage.name] = "; ".join(stage.obstacles)
            elif waits:
                verdicts.refused[stage.name] = f"it comes after {waits[0]}" if changed else ""
            elif changed:
                if not (difference := _difference(stage, history)):
                    verdicts.same[stage.name] = stage
                elif because:
                    verdicts.because[stage.name] = (stage, difference)
                else:
                    verdicts.refused[stage.name] = difference
            bar.update()
    return verdicts


def _difference(stage: Record, history: History) -> str | None:
    """How the code that a stage ran differs from the one that it would run now."""
    if stage.entry["cmd"] != stage.command:
        return f"its command was `{stage.entry['cmd']}` and is `{stage.command}`"
    try:
        old, new = history.find(stage.before), code_versions.here(stage.now)
        if difference := code_versions.compare(old, new):
            return f"it runs other code\n{difference}"
    except StageError as error:
        return str(error)
    if stage.added:
        return f"params.yaml has {', '.join(stage.added)}, which it ran without"
    return None


def _write(
    accepted: dict[str, Record],
    because: dict[str, tuple[Record, str]],
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


def _noted(path: Path, record: Record, difference: str, reason: str) -> dict[str, Any]:
    """The content of a provenance file with one more accepted change.

    Of all accepted changes it has the reason, date and new parameters. Only the last note has
    the difference, and ``code``: DVC's hash of each file or folder as the stage ran on it, ``old``,
    and as it is accepted now, ``new``. Notes of earlier releases each have both, for one change.
    """
    try:
        contents = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path}: damaged ({error}); `dvc checkout {path}`") from None
    earlier = contents.get("accepted", [])
    ran, now = dict[str, str | None](record.before), record.now
    for note in reversed(earlier):
        ran |= {name: hashes["old"] for name, hashes in note.get("code", {}).items()}
    changed = sorted(name for name in {*ran, *now} if ran.get(name) != now.get(name))
    last = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "because": reason,
        "new parameters": [*record.added],
        "difference": difference,
        "code": {name: {"old": ran.get(name), "new": now.get(name)} for name in changed},
    }
    kept = [
        {key: note[key] for key in note if key not in ("difference", "code")} for note in earlier
    ]
    return contents | {"accepted": [*kept, last]}


def _lines(verdicts: _Verdicts) -> list[str]:
    """The lines of the output, one for each stage, and two for the place of a difference."""
    lines = [f"{name}: accepted, nothing that it runs differs" for name in verdicts.same]
    lines += [f"{name}: accepted, provenance/{name}.json says why" for name in verdicts.because]
    lines += [f"{name}: not accepted, {why}" for name, why in verdicts.refused.items() if why]
    return lines or ["nothing to accept: every stage ran on the code that is here"]
