"""``rrcm adopt``: results that were made elsewhere of the same inputs become results here.

Elsewhere is another checkout, or a machine without DVC, such as a rented one with a GPU.
"""

import shutil
from pathlib import Path
from typing import Any

from dvc.stage import PipelineStage
from dvc.stage.serialize import to_single_stage_lockfile

from pipeline import checked
from pipeline.runtime import graph, without_dvc
from pipeline.runtime.without_dvc import RECORDS
from pipeline.workflow import lockfile, plan
from pipeline.workflow.accept import today
from pipeline.workflow.changes import Changes
from pipeline.workflow.processes import Say
from rrcm.config.sections import PARAMS
from rrcm.core.errors import DataError
from rrcm.core.files import atomic, read_bytes, read_json, require_file, write_json
from rrcm.core.locks import alone
from rrcm.core.schema import listed


def adopt(folder: Path, *, say: Say) -> bool:
    """Take over the results in ``folder`` of all stages of dvc.yaml that are out of date here.

    Guarantee: a result is taken over only if its command, code, parameters and the bytes of its
    inputs there were those that are here, and its bytes are those that its stage wrote. Then it is
    in DVC's cache and in dvc.lock, and ``provenance/<stage>.json`` says when it was adopted. A
    result that is up to date here stays. A kill at any moment loses nothing: the same command goes
    on.

    Args:
        folder: With the outputs at their paths, and a record of each stage: ``dvc.lock``, or
            ``provenance/<stage>.lock`` where DVC is not installed.
        say: Called with a line for each stage that has a record.

    Returns:
        Whether each recorded result was taken over, or has the same bytes here.

    Raises:
        DataError: ``folder`` has no record, or a damaged one, or other bytes than a record says.
        StageError: A stage runs here now; or dvc.yaml or a dvc.lock cannot be read.
    """
    checked.load()
    plan.refreshed()
    records, whole = _records(folder), True
    with plan.opened() as (stages, order):
        changes = Changes(stages, here=True)
        for stage in order:
            if record := records.get(stage.addressing):
                name = stage.addressing
                with alone(graph.SCRATCH / f"{name}.lock", name, say=say, patience=0.0):
                    stale = changes.in_stage(stage)
                    done, how = _take(stage, record, folder) if stale else _compare(stage, record)
                whole &= done
                say(f"{name}: {how}")
    return whole


def _records(folder: Path) -> dict[str, Any]:
    """The entry, as in dvc.lock, of each stage that has one in ``folder``."""
    records = dict[str, Any]()
    for path in (folder / lockfile.LOCKFILE, *sorted((folder / RECORDS).glob("*.lock"))):
        if path.exists():
            try:
                records |= lockfile.parsed(read_bytes(path).decode(errors="replace"))
            except DataError as error:
                raise DataError(f"{path}: no record of DVC's form ({error})") from None
    if not records:
        raise DataError(
            f"{folder}: nothing says what results here were made of; there is no dvc.lock, and no "
            f"{RECORDS}/*.lock"
        )
    return records


def _compare(stage: PipelineStage, record: Any) -> tuple[bool, str]:
    there = lockfile.hashes(record)
    results = [out for out in stage.outs if Path(out.def_path).parts[0] != str(RECORDS)]
    other = [out.def_path for out in results if there.get(out.def_path) != out.hash_info.value]
    if not other:
        return True, "up to date here, with the same bytes"
    return False, f"stays as it is here; other bytes there: {listed(other)}"


def _take(stage: PipelineStage, record: Any, folder: Path) -> tuple[bool, str]:
    """Take over the outputs of a stage, and say so; or say why not."""
    name, before, there = stage.addressing, lockfile.read(), lockfile.hashes(record)
    if differing := _differences(without_dvc.inputs(name), record):
        return False, f"not adopted, made of other inputs: {listed(differing)}"
    for path in sorted((o.def_path for o in stage.outs), key=lambda path: path.endswith("json")):
        _copy(folder / path, Path(path), there.get(path, ""))
    note = RECORDS / f"{name}.json"
    write_json(note, read_json(note) | {"adopted": today()})
    for dep in stage.deps:
        dep.save()
    for made in stage.outs:
        made.save()
        made.commit()
    lockfile.adopt({name: to_single_stage_lockfile(stage)}, over=before)
    return True, "adopted"


def _differences(here: dict[str, Any], record: Any) -> list[str]:
    """The names of inputs that were not those that are here."""
    there = {
        "files": lockfile.hashes(record, "deps"),
        "params": record.get("params", {}).get(str(PARAMS), {}),
    }
    names = ["the command"] * (here["cmd"] != record.get("cmd"))
    for kind, found in there.items():
        names += [key for key, value in here[kind].items() if found.get(key) != value]
        names += sorted(found.keys() - here[kind].keys())
    return names


def _copy(source: Path, path: Path, md5: str) -> None:
    if not source.is_dir():
        require_file(source)
    if path.is_dir():
        shutil.rmtree(path)  # DVC's cache has it
    with atomic(path) as part:
        copy = shutil.copytree if source.is_dir() else shutil.copyfile
        copy(source, part)
        if without_dvc.hashed(part) != md5:
            raise DataError(f"{source}: not the bytes that its stage wrote; fetch it again")
