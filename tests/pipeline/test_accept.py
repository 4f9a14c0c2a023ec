"""`rrcm accept`: a change that changes no result trains nothing again, and no other is let through.

Versions of a few lines are compared, then the command is tried on the real miniature.
"""

import json
import shutil
from pathlib import Path

import pytest
from builders import refused
from dvc.repo import Repo
from ruamel.yaml import YAML
from workspace import RUN, Workspace

from pipeline.project import accept as accepting
from pipeline.project.code_versions import compare
from rrcm.core.errors import DataError, StageError


def same(old: dict[str, str] | str, new: dict[str, str] | str) -> bool:
    """Whether two versions, files by path or one file, are the same code, asked both ways."""
    versions = [{"a.py": each} if isinstance(each, str) else each for each in (old, new)]
    before, now = ({path: text.encode() for path, text in each.items()} for each in versions)
    there, back = compare(before, now), compare(now, before)
    assert (there is None) == (back is None)
    return there is None


SAME = {
    "docstrings": ('def f():\n    "A."\n    return 1\nprint(f())', "def f(): return 1\nprint(f())"),
    "nothing but a docstring": ('def f():\n    "A."', 'def f():\n    "B."'),
    "docstring of a module": ('"A."\nprint(1)', '"B."\nprint(1)'),
    "comments": ("x = 1  # one\nprint(x)", "x = 1\n\n\nprint(x)"),
    "annotations": (
        "def f(a: int) -> int:\n    b: int = a\n    return b\nprint(f(1))",
        "def f(a: float):\n    b = a\n    return b\nprint(f(1))",
    ),
    "a new file that nothing imports": (
        {"rrcm/a.py": "x = 1"},
        {"rrcm/a.py": "x = 1", "rrcm/b.py": "y = 2"},
    ),
    "an empty package": (
        {"rrcm/a.py": "x = 1"},
        {"rrcm/a.py": "x = 1", "rrcm/__init__.py": '"""A."""'},
    ),
}
DIFFERENT = {
    "constant": ("x = 1\nprint(x)", "x = 2\nprint(x)"),
    "kind of constant": ("x = 1\nprint(x)", "x = 1.0\nprint(x)"),
    "name": ("def f(): return 1\nf()", "def g(): return 1\ng()"),
    "default": ("def f(a=1): return a\nprint(f())", "def f(a=2): return a\nprint(f())"),
    "field": ("class A:\n    x: int\nprint(A)", "class A:\n    x: float\nprint(A)"),
    "order of fields": ("class A:\n    x: int\n    y: int", "class A:\n    y: int\n    x: int"),
    "decorator": ("def f(): return 1\nf()", "@d\ndef f(): return 1\nf()"),
    "annotation that a decorator reads": (
        "@d\ndef f(a: int): return 1\nf(1)",
        "@d\ndef f(a: str): return 1\nf(1)",
    ),
    "text that is no docstring": ('x = 1\n"a"\nf("b")', 'x = 1\n"a"\nf("c")'),
    "order of effects": ("print(1)\nprint(2)", "print(2)\nprint(1)"),
    "import for its effect": ("import torch\nprint(1)", "print(1)"),
    "what is imported": ("from math import sin as g\ng(1)", "from math import cos as g\ng(1)"),
    "from where": ("from rrcm.a import f\nf()", "from rrcm.b import f\nf()"),
    "order of imports of others": ("import a\nimport b", "import b\nimport a"),
    "moved and changed": (
        {"rrcm/s.py": "from rrcm.a import x", "rrcm/a.py": "x = 1"},
        {"rrcm/s.py": "from rrcm.b import x", "rrcm/b.py": "x = 2"},
    ),
    "moved, and another in its place": (
        {"rrcm/s.py": "from rrcm.a import x", "rrcm/a.py": "x = 1"},
        {"rrcm/s.py": "from rrcm.a import x", "rrcm/a.py": "x = 2", "rrcm/b.py": "x = 1"},
    ),
    "a file that is imported and new": (
        {"rrcm/s.py": "from rrcm.a import x"},
        {"rrcm/s.py": "from rrcm.a import x", "rrcm/a.py": "x = 1"},
    ),
    "a package that is imported and new": (
        {"rrcm/s.py": "from rrcm.a import x"},
        {"rrcm/s.py": "from rrcm.a import x", "rrcm/a/__init__.py": "x = 1"},
    ),
    "a file that is no Python": ({"p/t.txt": "a"}, {"p/t.txt": "b"}),
}


@pytest.mark.parametrize("name", SAME)
def test_what_runs_the_same_is_the_same(name: str):
    assert same(*SAME[name])


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_may_run_otherwise_is_different(name: str):
    assert not same(*DIFFERENT[name])
    for one in DIFFERENT[name]:
        assert same(one, one)


# The command


LOSSES = "rrcm/training/shared/losses.py"


def entries(workspace: Workspace) -> dict:
    return YAML(typ="safe").load(workspace.path / "dvc.lock")["stages"]


def replace(workspace: Workspace, file: str, old: str, new: str) -> None:
    """Change a text that is in a file."""
    path = workspace.path / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def mend(workspace: Workspace, file: str) -> None:
    """Change a file's docstring."""
    path = workspace.path / file
    path.write_text(path.read_text().replace('"""', '"""Mended: ', 1))


def accept(workspace: Workspace, *targets: str, because: str | None = None, fails=False) -> str:
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


def test_an_upgrade_that_only_mends_runs_nothing_again(checkout: Workspace):
    """A docstring, an annotation, and a new file in a folder that the stage lists."""
    before = entries(checkout)
    mend(checkout, "rrcm/core/errors.py")
    replace(checkout, LOSSES, "-> Tensor:", '-> "Tensor":')
    (checkout.path / LOSSES).with_name("formulas.py").write_text("PI = 3\n")

    said = accept(checkout)

    assert f"train@{RUN}: accepted, nothing that it runs differs" in said
    assert is_up_to_date(checkout)
    assert "nothing to accept" in accept(checkout)
    after = entries(checkout)
    assert {n: e["outs"] for n, e in before.items()} == {n: e["outs"] for n, e in after.items()}
    assert {n: e.get("params") for n, e in before.items()} == {
        n: e.get("params") for n, e in after.items()
    }


def test_a_change_of_what_runs_is_refused_with_its_line(checkout: Workspace):
    """Stages that do not run it are accepted; those after it wait for it."""
    before = entries(checkout)
    mend(checkout, "pipeline/stages/shard.py")
    replace(checkout, "rrcm/training/methods/rrcm.py", "PRETRAINED = True", "PRETRAINED = 1")
    mend(checkout, "pipeline/stages/export.py")

    said = accept(checkout, fails=True)

    text = (checkout.path / "rrcm/training/methods/rrcm.py").read_text()
    line = text[: text.index("PRETRAINED = 1")].count("\n") + 1
    assert f"train@{RUN}: not accepted, it runs other code" in said
    assert f"- rrcm/training/methods/rrcm.py:{line}: PRETRAINED = True" in said
    assert f"+ rrcm/training/methods/rrcm.py:{line}: PRETRAINED = 1" in said
    assert "shard: accepted" in said
    assert "export@tiny-gaussian-s050: accepted" in said
    assert f"export@{RUN}: not accepted, it comes after train@{RUN}" in said
    changed = {name for name, entry in entries(checkout).items() if entry != before[name]}
    assert changed == {"shard", "export@tiny-gaussian-s050"}


def test_a_reason_accepts_a_change_and_stays_with_the_result(checkout: Workspace):
    name = f"provenance/train@{RUN}.json"
    provenance, entry = checkout.path / name, entries(checkout)[f"train@{RUN}"]
    before = provenance.read_text()
    replace(checkout, "rrcm/training/methods/rrcm.py", "PRETRAINED = True", "PRETRAINED = 1")

    with refused(StageError, "say why"):
        accept(checkout, because=" ")
    assert provenance.read_text() == before
    said = accept(checkout, f"train@{RUN}", because="1 is True")

    assert f"train@{RUN}: accepted, {name} says why" in said
    (note,) = json.loads(provenance.read_text())["accepted"]
    assert note["because"] == "1 is True"
    assert note["difference"].endswith(": PRETRAINED = 1")
    assert list(note["code"]) == ["rrcm/training/methods/rrcm.py"]
    rows = {row["path"]: row for row in entries(checkout)[f"train@{RUN}"]["outs"]}
    old = {row["path"]: row for row in entry["outs"]}
    assert {path for path in rows if rows[path] != old[path]} == {name}
    assert is_up_to_date(checkout)
    provenance.unlink()
    checkout.run("dvc", "checkout", name)
    assert json.loads(provenance.read_text())["accepted"] == [note]


def test_the_last_note_has_the_code_of_all_and_the_earlier_their_reasons(checkout: Workspace):
    """From what the stage ran on to what is accepted, whatever was accepted between."""
    stage, method = f"train@{RUN}", "rrcm/training/methods/rrcm.py"
    provenance = checkout.path / f"provenance/{stage}.json"

    def code() -> dict[str, str]:
        return {row["path"]: row["md5"] for row in entries(checkout)[stage]["deps"]}

    def change(old: str, new: str, file: str = method) -> list[dict]:
        replace(checkout, file, old, new)
        accept(checkout, stage, because=new)
        return json.loads(provenance.read_text())["accepted"]

    ran = code()
    first = change("PRETRAINED = True", "PRETRAINED = 1")
    between = code()
    second = change("PRETRAINED = 1", "PRETRAINED = 2")
    changes = {method: {"old": ran[method], "new": code()[method]}}
    assert [note.get("code") for note in second] == [None, changes]
    one = {method: {"old": between[method], "new": code()[method]}}
    old = {"accepted": [*first, second[1] | {"code": one}]}  # as earlier releases wrote them
    provenance.write_text(json.dumps(json.loads(provenance.read_text()) | old))
    checkout.run("dvc", "commit", "--force", stage)

    *earlier, last = change("import torch", "import  torch", LOSSES)

    folder = str(Path(LOSSES).parent)
    assert last["code"] == changes | {folder: {"old": ran[folder], "new": code()[folder]}}
    assert [note["because"] for note in earlier] == ["PRETRAINED = 1", "PRETRAINED = 2"]
    assert [note["date"] for note in earlier] == [note["date"] for note in second]
    assert not any({"code", "difference"} & note.keys() for note in earlier)
    *_, last = change("PRETRAINED = 2", "PRETRAINED = True")
    assert list(last["code"]) == [folder]


def test_a_reason_accepts_an_option_that_is_new_and_no_other_value(
    checkout: Workspace, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pipeline.checked.load", lambda: None)  # to which it is unknown
    before = entries(checkout)
    checkout.edit(lambda params: [recipe.update(extra=1) for recipe in params["recipes"].values()])

    assert f"train@{RUN}: not accepted" in accept(checkout, fails=True)
    assert entries(checkout)[f"train@{RUN}"] == before[f"train@{RUN}"]
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


def test_other_parameters_and_code_that_git_never_had_are_not_accepted(checkout: Workspace):
    before, text = entries(checkout), (checkout.path / "dvc.lock").read_text()
    path = "rrcm/config/sections.py"
    (row,) = {r["md5"] for r in before["shard"]["deps"] if r["path"] == path}
    (checkout.path / "dvc.lock").write_text(text.replace(row, "f" * 32))
    checkout.edit(lambda params: params["runs"][RUN].update(seed=1))
    left = entries(checkout)

    said = accept(checkout, "shard", fails=True)
    assert f"shard: not accepted, {path}: git has no commit with the version" in said
    assert entries(checkout) == left
    said = accept(checkout, because="no matter", fails=True)
    assert f"train@{RUN}: not accepted, params.yaml says otherwise: runs.{RUN}" in said
    assert entries(checkout)[f"train@{RUN}"] == left[f"train@{RUN}"]


@pytest.mark.slow
def test_outputs_that_are_not_here_stay_what_they_are(checkout: Workspace):
    """As in a clone, whose results are in a remote."""
    before = entries(checkout)
    encoders = [path.name for path in (checkout.path / "pretrained").iterdir() if path.is_dir()]
    assert encoders
    for folder in ("models", "shards", "onnx", "votes", "provenance", "pretrained"):
        shutil.rmtree(checkout.path / folder)
    shutil.rmtree(checkout.path / ".dvc/cache/files")
    for name in encoders:  # `dvc pull` leaves a folder where it lacked the files
        (checkout.path / "pretrained" / name).mkdir(parents=True)
    mend(checkout, "rrcm/core/errors.py")

    accept(checkout)

    after = entries(checkout)
    assert {n: e["outs"] for n, e in before.items()} == {n: e["outs"] for n, e in after.items()}
    for name, entry in after.items():
        rows = {row["path"]: row for row in before[name]["deps"]}
        assert {row["path"] for row in entry["deps"] if row != rows[row["path"]]} == {"rrcm/core"}
    replace(checkout, "rrcm/training/methods/rrcm.py", "PRETRAINED = True", "PRETRAINED = 1")
    with refused(DataError, f"provenance/train@{RUN}.json: not here"):
        accept(checkout, because="1 is True")
    assert entries(checkout) == after
