"""What stages leave to git, and not to DVC: dvc.lock, and outputs with ``cache: false``."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.flow import git
from rrcm.files import write_text
from rrcm.parsing import read_yaml


def names() -> set[str]:
    """dvc.lock, and what dvc.yaml leaves to git: outputs with ``cache: false``."""
    paths = ["dvc.lock"]
    for stage in read_yaml(Path("dvc.yaml")).get("stages", {}).values():
        body = stage.get("do", stage)
        for output in [one for kind in ("outs", "metrics", "plots") for one in body.get(kind, ())]:
            if isinstance(output, dict):
                paths += [
                    path for path, said in output.items() if (said or {}).get("cache") is False
                ]
    known = (re.sub(r"\\\$\\\{.*?\\\}", ".*", re.escape(path)) for path in paths)
    names = re.compile("|".join(f"{one}(?:/.*)?" for one in known))
    tracked = git.run("ls-files", "-z").split("\0")
    here = {file for path in map(Path, paths) for file in (path, *path.rglob("*"))}
    return {file.as_posix() for file in here if file.is_file()} | {
        name for name in tracked if names.fullmatch(name)
    }


def made_by(entry: Mapping[str, Any]) -> dict[str, str]:
    """Text of the files, by path, that a stage of this entry of dvc.lock made and git keeps."""
    folders = [out["path"] for out in entry.get("outs", ())]
    return {
        name: Path(name).read_text(encoding="utf-8")
        for name in sorted(names())
        if any(Path(name).is_relative_to(folder) for folder in folders) and Path(name).is_file()
    }


def put(entry: Mapping[str, Any], files: Mapping[str, str]) -> None:
    """Have here what `made_by` found elsewhere, and no other file in its place."""
    for name in {*made_by(entry)} - {*files}:
        Path(name).unlink()
    for name, text in files.items():
        write_text(Path(name), text)
