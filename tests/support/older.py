"""The state before an edit: dvc.lock has an older run of every stage, and the cache its outputs."""

import hashlib
from pathlib import Path

from dvc.dependency.param import ParamsDependency
from dvc.stage import PipelineStage
from dvc.utils.serialize import dumps_yaml

from pipeline.workflow import plan

CONTENT = b"of other inputs\n"
MD5 = hashlib.md5(CONTENT).hexdigest()


def runs(path: Path) -> None:
    """Write them to the repository at ``path``, each with inputs that are no longer here."""
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
