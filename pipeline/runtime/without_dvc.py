"""A stage's inputs by DVC's hashes, read without DVC: as on a GPU lent for a quarter of an hour.

Of DVC's language this knows what dvc.yaml here uses: ``foreach`` over a section of params.yaml, and
``${…}`` with ``key``, ``item`` or a parameter.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from rrcm.config.sections import PARAMS
from rrcm.core.errors import StageError
from rrcm.core.files import atomic
from rrcm.core.schema import find, read_yaml

GRAPH = Path("dvc.yaml")
RECORDS = Path("provenance")
MISSING = "missing"  # the hash of what is not there
VARIABLE = re.compile(r"\$\{([\w.]+)\}")
IGNORED = ("__pycache__/*", "*.pyc", ".*.part")  # as in .dvcignore


def inputs(stage_name: str) -> dict[str, Any]:
    """The command, files and parameters that a stage depends on; `with_dvc.inputs` by DVC.

    Returns:
        ``cmd``; the hash of each of ``files``, `MISSING` if it is not there; ``params`` by their
        dotted names.

    Raises:
        StageError: dvc.yaml has no such stage.
        ConfigError: dvc.yaml or params.yaml cannot be read.
    """
    values = read_yaml(PARAMS)
    stage, known = _declared(stage_name, values)
    files = [_filled(name, known) for name in stage["deps"]]
    params = [_filled(name, known) for name in stage.get("params", ())]
    return {
        "cmd": _filled(stage["cmd"], known),
        "files": {name: hashed(Path(name)) for name in files},
        "params": {name: find(values, name) for name in params},
    }


def record(stage_name: str) -> None:
    """Write ``provenance/<stage>.lock``, after a stage: a dvc.lock with nothing but its entry."""
    stage, known = _declared(stage_name, read_yaml(PARAMS))
    declared = [out for kind in ("outs", "metrics", "plots") for out in stage.get(kind, ())]
    paths = [out if isinstance(out, str) else next(iter(out)) for out in declared]
    made, read = [_filled(path, known) for path in paths], inputs(stage_name)
    entry = {
        "cmd": read["cmd"],
        "deps": [{"path": name, "md5": value} for name, value in read["files"].items()],
        "params": {str(PARAMS): read["params"]},
        "outs": [{"path": name, "md5": hashed(Path(name))} for name in made],
    }
    with atomic(RECORDS / f"{stage_name}.lock") as part:
        YAML(typ="safe").dump({"schema": "2.0", "stages": {stage_name: entry}}, part)


def _declared(stage_name: str, values: Any) -> tuple[Any, dict[str, Any]]:
    """A stage of dvc.yaml, and what its variables mean."""
    name, _, key = stage_name.partition("@")
    stage, known = read_yaml(GRAPH)["stages"].get(name), dict(values)
    if stage and key and "foreach" in stage:
        each = find(values, VARIABLE.fullmatch(stage["foreach"])[1])
        stage = stage["do"] if key in each else None
        known |= {"key": key, "item": each.get(key)}
    if not stage or "do" in stage:
        raise StageError(f"dvc.yaml has no stage {stage_name}")
    return stage, known


def _filled(text: str, known: Mapping[str, Any]) -> str:
    return VARIABLE.sub(lambda variable: str(find(known, variable[1])), text)


def hashed(path: Path) -> str:
    """Return DVC's hash of a file or folder; `MISSING` if it is not there."""
    if path.is_dir():
        inside = [file for file in path.rglob("*") if file.is_file()]
        read = [file for file in inside if not any(map(file.match, IGNORED))]
        return tree({file.relative_to(path).as_posix(): md5(file) for file in read})
    return md5(path) if path.is_file() else MISSING


def md5(path: Path) -> str:
    """Return the hash by which DVC identifies a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def tree(files: dict[str, str]) -> str:
    """Return the hash by which DVC identifies a folder, from the hashes of its files."""
    listed = [{"md5": files[name], "relpath": name} for name in sorted(files)]
    return f"{hashlib.md5(json.dumps(listed, sort_keys=True).encode()).hexdigest()}.dir"
