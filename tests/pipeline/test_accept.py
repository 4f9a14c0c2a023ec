"""`rrcm accept`: a rewrite that computes the same trains nothing again, and says why."""

import json
import shutil

import pytest
from builders import refused
from dvc.repo import Repo
from ruamel.yaml import YAML
from workspace import RUN, Workspace

from pipeline.workflow import accept as accepting
from rrcm.core.errors import DataError, StageError

METHOD = "rrcm/training/methods/rrcm.py"
REWRITTEN = ("PRETRAINED = True", "PRETRAINED = 1")


def entries(workspace: Workspace) -> dict:
    return YAML(typ="safe").load(workspace.path / "dvc.lock")["stages"]


def replace(workspace: Workspace, file: str, old: str, new: str) -> None:
    """Change a text that is in a file."""
    path = workspace.path / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def accept(workspace: Workspace, *targets: str, because: str = "the same", fails=False) -> str:
    """What `rrcm accept` prints."""
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workspace.path)
        accepted = accepting.accept(targets, because=because, say=lines.append)
    assert accepted != fails, lines
    return "\n".join(lines)


def is_up_to_date(workspace: Workspace) -> bool:
    with Repo(str(workspace.path)) as repo:
        return repo.status() == {}


def test_a_mended_docstring_needs_no_acceptance(checkout: Workspace):
    before, method = entries(checkout), checkout.path / METHOD
    method.write_text(method.read_text().replace('"""', '"""Mended: ', 1))

    assert "nothing to accept" in accept(checkout)
    assert checkout.repro() == set()
    assert is_up_to_date(checkout)
    assert entries(checkout) == before


def test_a_reason_accepts_a_change_and_stays_with_the_result(checkout: Workspace):
    name = f"provenance/train@{RUN}.json"
    provenance, before = checkout.path / name, entries(checkout)
    text = provenance.read_text()
    replace(checkout, METHOD, *REWRITTEN)

    with refused(StageError, "say why"):
        accept(checkout, because=" ")
    assert provenance.read_text() == text
    said = accept(checkout, because="1 is True")

    assert f"train@{RUN}: accepted, {name} says why" in said
    (note,) = json.loads(provenance.read_text())["accepted"]
    assert note["because"] == "1 is True"
    assert note["code"] == ["code/components/methods/rrcm.json"]
    after = entries(checkout)
    assert {stage for stage in after if after[stage] != before[stage]} == {f"train@{RUN}"}
    rows = {row["path"]: row for row in after[f"train@{RUN}"]["outs"]}
    old = {row["path"]: row for row in before[f"train@{RUN}"]["outs"]}
    assert {path for path in rows if rows[path] != old[path]} == {name}
    assert is_up_to_date(checkout)
    replace(checkout, METHOD, *reversed(REWRITTEN))
    accept(checkout, because="as it was")
    provenance.unlink()
    checkout.run("dvc", "checkout", name)
    notes = json.loads(provenance.read_text())["accepted"]
    assert [one["because"] for one in notes] == ["1 is True", "as it was"]


def test_what_comes_after_another_change_is_not_accepted(checkout: Workspace):
    """Nor is that change; other stages are."""
    before, export = entries(checkout), checkout.path / "rrcm/inference/export.py"
    checkout.edit(lambda params: params["runs"][RUN].update(seed=1))
    export.write_text(f"{export.read_text()}\nUNUSED = 1\n")

    said = accept(checkout, "export", fails=True)

    assert f"train@{RUN}: not accepted, params.yaml says otherwise: runs.{RUN}" in said
    assert f"export@{RUN}: not accepted, it comes after train@{RUN}" in said
    after = entries(checkout)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"export@tiny-gaussian-s050"}


def test_a_reason_accepts_an_option_that_is_new_and_no_other_value(
    checkout: Workspace, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pipeline.checked.load", lambda: None)  # to which it is unknown
    before = entries(checkout)
    checkout.edit(lambda params: [recipe.update(extra=1) for recipe in params["recipes"].values()])

    accept(checkout, because="nothing reads it")

    old, new = (
        each[f"train@{RUN}"]["params"]["params.yaml"] for each in (before, entries(checkout))
    )
    assert new == old | {"recipes.finetune": old["recipes.finetune"] | {"extra": 1}}
    provenance = json.loads((checkout.path / f"provenance/train@{RUN}.json").read_text())
    assert provenance["accepted"][0]["new parameters"] == ["recipes.finetune.extra"]
    checkout.edit(lambda params: [recipe.update(extra=2) for recipe in params["recipes"].values()])
    said = accept(checkout, because="another value", fails=True)
    assert "not accepted, params.yaml says otherwise: recipes.finetune" in said


@pytest.mark.slow
def test_outputs_that_are_not_here_stay_what_they_are(checkout: Workspace):
    """As in a clone, whose results are in a remote."""
    before = entries(checkout)
    encoders = [path.name for path in (checkout.path / "pretrained").iterdir() if path.is_dir()]
    assert encoders
    for folder in ("models", "shards", "onnx", "votes", "pretrained"):
        shutil.rmtree(checkout.path / folder)
    shutil.rmtree(checkout.path / ".dvc/cache/files")
    for name in encoders:  # `dvc pull` leaves a folder where it lacked the files
        (checkout.path / "pretrained" / name).mkdir(parents=True)
    replace(checkout, METHOD, *REWRITTEN)

    accept(checkout)

    after = entries(checkout)
    assert {name for name in after if after[name] != before[name]} == {f"train@{RUN}"}
    shutil.rmtree(checkout.path / "provenance")
    replace(checkout, METHOD, *reversed(REWRITTEN))
    with refused(DataError, f"provenance/train@{RUN}.json: not found", "dvc pull"):
        accept(checkout)
    assert entries(checkout) == after
