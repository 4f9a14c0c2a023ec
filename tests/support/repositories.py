"""Repositories of DVC without git, also as before an edit: with an older run of every stage."""

import hashlib
from pathlib import Path

from dvc.dependency.param import ParamsDependency
from dvc.repo import Repo
from dvc.stage import PipelineStage
from dvc.utils.serialize import dumps_yaml

from pipeline.workflow import plan
from pipeline.workflow.plan import Node

CONTENT = b"of other inputs\n"
MD5 = hashlib.md5(CONTENT).hexdigest()


def repository(path: Path, graph: str, files: dict[str, str]) -> Path:
    """Make one of a graph and some files; its folder."""
    path.mkdir(exist_ok=True)
    Repo.init(str(path), no_scm=True).close()
    for name, text in {"dvc.yaml": graph, **files}.items():
        (path / name).write_text(text)
    return path


def node(name: str, *upstream: str, reason: str = "") -> Node:
    """A stage of a plan, which runs if there is a reason."""
    return Node(name=name, upstream=upstream, devices=1, inputs=(), reason=reason, forced=False)


def older_runs(path: Path) -> None:
    """Have dvc.lock say that every stage ran, on inputs that are no longer here."""
    cached = path / ".dvc/cache/files/md5" / MD5[:2] / MD5[2:]
    cached.parent.mkdir(parents=True, exist_ok=True)
    cached.write_bytes(CONTENT)
    with plan.opened(str(path)) as (_, order):
        stages = {stage.name: _entry(stage) for stage in order}
    (path / "dvc.lock").write_text(dumps_yaml({"schema": "2.0", "stages": stages}))


def _entry(stage: PipelineStage) -> dict[str, object]:
    row = {"hash": "md5", "md5": MD5, "size": len(CONTENT)}
    files = [one for one in stage.deps if not isinstance(one, ParamsDependency)]
    deps = {"deps": [{"path": one.def_path, **row} for one in files]} if files else {}
    return {"cmd": stage.cmd, **deps, "outs": [{"path": one.def_path, **row} for one in stage.outs]}
