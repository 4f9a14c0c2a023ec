"""Stages run without DVC; `rrcm adopt` takes over what was made elsewhere of the same inputs."""

import json
import shutil
from pathlib import Path

import pytest
from builders import refused
from ruamel.yaml import YAML
from workspace import ROOT, RUN, Workspace

from pipeline.runtime import with_dvc, without_dvc
from pipeline.workflow import adopt as adopting
from pipeline.workflow import lockfile, plan
from rrcm.core.errors import DataError

PRETRAINED, TRAINED = "pretrain@tiny", f"train@{RUN}"
ENCODER, MODEL = "pretrained/tiny/encoder.safetensors", f"models/{RUN}/model.safetensors"


@pytest.fixture
def no_dvc(tmp_path: Path) -> str:
    """A folder for PYTHONPATH that hides DVC."""
    folder = tmp_path / "no dvc"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['dvc'] = None\n")
    return str(folder)


def reseeded(params: dict) -> None:
    params["pretrain"]["tiny"]["seed"] = 3


def adopt(here: Workspace, folder: Path, *, whole: bool = True) -> str:
    """What `rrcm adopt` prints."""
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here.path)
        assert adopting.adopt(folder, say=lines.append) == whole, "\n".join(lines)
    return "\n".join(lines)


def entries(workspace: Workspace) -> dict:
    return YAML(typ="safe").load(workspace.path / "dvc.lock")["stages"]


def test_inputs_without_dvc_are_those_that_dvc_has(
    finished: Workspace, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(finished.path)
    with plan.opened() as (_, order):
        names = [stage.addressing for stage in order]
    assert len(names) > 8
    for name in names:
        assert without_dvc.inputs(name) == with_dvc.inputs(name), name


@pytest.mark.parametrize("preset", ["digits-diffusion", "imagenet"])
def test_so_they_are_in_presets(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Parameters, and names of files, which are not there."""
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    shutil.copy(ROOT / f"presets/{preset}.yaml", tmp_path / "params.yaml")
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[core]\n    no_scm = True\n")
    monkeypatch.chdir(tmp_path)
    with plan.opened() as (_, order):
        names = [stage.addressing for stage in order]
    assert len(names) > 20
    for name in names[:: len(names) // 20]:
        assert without_dvc.inputs(name) == with_dvc.inputs(name), name


def test_a_machine_without_dvc_makes_the_same_bytes_and_they_are_adopted(
    checkout: Workspace, tmp_path: Path, no_dvc: str
):
    checkout.edit(reseeded)
    elsewhere, made_here = checkout.copy(tmp_path / "lent"), checkout.copy(tmp_path / "own")
    shutil.rmtree(elsewhere.path / ".dvc")
    (elsewhere.path / "dvc.lock").unlink()
    for name in (PRETRAINED, TRAINED):
        elsewhere.stage(name, PYTHONPATH=f"{no_dvc}:{elsewhere.path}")
    made_here.repro(TRAINED)
    before = entries(checkout)

    said = adopt(checkout, elsewhere.path)

    assert f"{PRETRAINED}: adopted" in said and f"{TRAINED}: adopted" in said
    for file in (ENCODER, MODEL):
        assert checkout.digest(file) == elsewhere.digest(file) == made_here.digest(file)
    after = entries(checkout)
    assert {name for name in after if after[name] != before[name]} == {PRETRAINED, TRAINED}
    note = json.loads((checkout.path / f"provenance/{TRAINED}.json").read_text())
    assert note["adopted"] and note["packages"]["torch"]
    (checkout.path / MODEL).unlink()
    checkout.run("dvc", "checkout", MODEL)  # the cache has it
    assert checkout.repro(TRAINED) == set()
    said = adopt(checkout, made_here.path, whole=False)
    assert f"{TRAINED}: up to date here, with the same bytes" in said
    assert f"export@{RUN}: not adopted, made of other inputs: models/{RUN}" in said  # not run there


def test_what_was_made_of_other_inputs_is_not_adopted(checkout: Workspace, tmp_path: Path):
    elsewhere = checkout.copy(tmp_path / "elsewhere")
    checkout.edit(lambda params: params["recipes"]["finetune"].update(epochs=3))
    before = entries(checkout), checkout.digest("models/*/*")

    said = adopt(checkout, elsewhere.path, whole=False)

    assert f"{TRAINED}: not adopted, made of other inputs: recipes.finetune" in said
    assert f"{PRETRAINED}: up to date here, with the same bytes" in said
    assert (entries(checkout), checkout.digest("models/*/*")) == before
    lock = elsewhere.path / "dvc.lock"
    lock.write_text(lock.read_text().replace("outs:", "results:"))
    with refused(DataError, "dvc.lock: no record of DVC's form"):
        adopt(checkout, elsewhere.path)
    lock.unlink()
    with refused(DataError, "nothing says what results here were made of"):
        adopt(checkout, elsewhere.path)


def test_a_damaged_result_is_refused_and_an_interrupted_adoption_goes_on(
    checkout: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    elsewhere = checkout.copy(tmp_path / "elsewhere")
    elsewhere.edit(reseeded)
    elsewhere.repro(PRETRAINED)
    checkout.edit(reseeded)
    before, encoder = entries(checkout), elsewhere.path / ENCODER
    kept = encoder.read_bytes()

    lock = elsewhere.path / "dvc.lock"
    recorded = lock.read_text()
    lock.write_text(recorded.replace(f"path: {ENCODER}", "path: ../stolen"))
    with refused(DataError, f"{ENCODER}: not the bytes that its stage wrote"):
        adopt(checkout, elsewhere.path)
    assert not (checkout.path.parent / "stolen").exists()
    lock.write_text(recorded)
    encoder.unlink()
    encoder.write_bytes(kept[:-1])
    with refused(DataError, "not the bytes that its stage wrote"):
        adopt(checkout, elsewhere.path)
    assert entries(checkout) == before
    encoder.write_bytes(kept)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(lockfile, "adopt", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        adopt(checkout, elsewhere.path)
    assert entries(checkout) == before

    assert f"{PRETRAINED}: adopted" in adopt(checkout, elsewhere.path, whole=False)
    assert entries(checkout)[PRETRAINED]["outs"] != before[PRETRAINED]["outs"]
    other = checkout.copy(tmp_path / "other")
    md5 = next(out["md5"] for out in entries(other)[PRETRAINED]["outs"] if out["path"] == ENCODER)
    lock = other.path / "dvc.lock"
    lock.write_text(lock.read_text().replace(md5, "f" * 32))
    said = adopt(checkout, other.path, whole=False)
    assert f"{PRETRAINED}: stays as it is here; other bytes there: {ENCODER}" in said
