"""What the code means: an edit runs again what it may change, and nothing else.

Pairs of a few lines are compared, then edits of the real code against the real graph.
"""

import ast
import json
import re
import shutil
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from builders import refused
from ruamel.yaml import YAML
from workspace import ROOT, Workspace, committed

from pipeline.runtime import code
from pipeline.workflow import plan
from pipeline.workflow.changes import Changes
from rrcm.core import registry
from rrcm.core.errors import StageError

Files = dict[str, str]


def meaning(path: Path, files: Files | str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the code of the first file means, in a folder that has these."""
    files = {"rrcm/s.py": files} if isinstance(files, str) else files
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    monkeypatch.chdir(path)
    return code.closure(Path(next(iter(files))))


SAME = {
    "docstrings": ('def f():\n    "A."\n    return 1\nprint(f())', "def f(): return 1\nprint(f())"),
    "nothing but a docstring": ('def f():\n    "A."', 'def f():\n    "B."'),
    "docstring of a module": ('"A."\nprint(1)', '"B."\nprint(1)'),
    "comments": ("x = 1  # one\nprint(x)", "x = 1\n\n\nprint(x)"),
    "annotations": (
        "def f(a: int) -> int:\n    b: int = a\n    return b\nprint(f(1))",
        "def f(a: float):\n    b = a\n    return b\nprint(f(1))",
    ),
    "how a text is written": ("x = u'a' 'b'", 'x = "ab"'),
    "a new file that nothing imports": (
        {"rrcm/a.py": "x = 1"},
        {"rrcm/a.py": "x = 1", "rrcm/b.py": "y = 2"},
    ),
    "the name of a file that nothing imports": (
        {"rrcm/a.py": "x = 1", "rrcm/b.py": "y = 2"},
        {"rrcm/a.py": "x = 1", "rrcm/c.py": "y = 2"},
    ),
}
DIFFERENT = {
    "constant": ("x = 1\nprint(x)", "x = 2\nprint(x)"),
    "kind of constant": ("x = 1\nprint(x)", "x = 1.0\nprint(x)"),
    "nothing and a value": ("x = None", "x = 0"),
    "sign of zero": ("x = 0.0", "x = -0.0"),
    "order of operations": ("x = a - (b - c)", "x = (a - b) - c"),
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
    "key of a mapping": ("x = {None: 1}", "x = {**1}"),
    "moved, and another in its place": (
        {"rrcm/s.py": "from rrcm.a import x", "rrcm/a.py": "x = 1"},
        {"rrcm/s.py": "from rrcm.a import x", "rrcm/a.py": "x = 2", "rrcm/b.py": "x = 1"},
    ),
    "import in a function, of a file that imports": (
        {
            "rrcm/s.py": "def f():\n    import rrcm.a",
            "rrcm/a.py": "import rrcm.b",
            "rrcm/b.py": "1",
        },
        {
            "rrcm/s.py": "def f():\n    import rrcm.a",
            "rrcm/a.py": "import rrcm.b",
            "rrcm/b.py": "2",
        },
    ),
    "a file that is imported and new": (
        {"rrcm/s.py": "from rrcm import a"},
        {"rrcm/s.py": "from rrcm import a", "rrcm/a.py": "x = 1"},
    ),
    "a module that is named by a string": (
        {"rrcm/s.py": 'load("rrcm.a.f")', "rrcm/a.py": "def f(): return 1"},
        {"rrcm/s.py": 'load("rrcm.a.f")', "rrcm/a.py": "def f(): return 2"},
    ),
    "a file beside it that is no Python": (
        {"rrcm/p/s.py": 'read("t.txt")', "rrcm/p/t.txt": "a"},
        {"rrcm/p/s.py": 'read("t.txt")', "rrcm/p/t.txt": "b"},
    ),
}


@pytest.mark.parametrize("name", [*SAME, *DIFFERENT])
def test_what_may_run_otherwise_has_another_digest_and_nothing_else(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    old, new = (SAME | DIFFERENT)[name]

    before = meaning(tmp_path / "old", old, monkeypatch)
    now = meaning(tmp_path / "new", new, monkeypatch)

    assert (before == now) == (name in SAME)


def test_the_digest_is_that_of_every_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`ast.dump` is not: 3.13 leaves empty fields out. Of 3.11; 3.12 adds the empty text."""
    text = 'def f(*a, k=None, **b):\n    return [f"{x!r:{9}}é" for x in a if x] or {1: (), **b}\n'
    of_312 = ast.parse(text)
    for node in ast.walk(of_312):
        if isinstance(node, ast.JoinedStr):
            node.values.append(ast.Constant(""))

    meant = meaning(tmp_path, text, monkeypatch)
    code.read.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(ast, "parse", lambda _: of_312)
        meant_by_312 = meaning(tmp_path, text, monkeypatch)

    assert '"412f529cea547c0f"' in meant
    assert meant_by_312 == meant


def test_code_that_is_no_python_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with refused(StageError, "rrcm/s.py: no valid Python"):
        meaning(tmp_path, "def", monkeypatch)


# The real code, and the real graph under two presets


def mend(text: str) -> str:
    return text.replace('"""', '"""Mended: ', 1)


def constant(text: str) -> str:
    return f"{text}\nNEW = 1\n"


NOTHING: set[str] = set()
TRAINED, RUN_BY_ONNX = {"pretrain@*", "train@*"}, {"export@*", "sample@*"}
EDITS = {  # file: how it is edited, and the stages that run again for it with digits, with MNIST
    "a docstring": ("rrcm/training/engine/loop.py", mend, NOTHING, NOTHING),
    "a docstring of all stages": ("rrcm/core/files.py", mend, NOTHING, NOTHING),
    "a comment": ("rrcm/training/methods/rrcm.py", lambda t: f"# A.\n{t}", NOTHING, NOTHING),
    "an annotation": (
        "rrcm/training/shared/losses.py",
        lambda text: text.replace("-> Tensor:", '-> "Tensor":'),
        NOTHING,
        NOTHING,
    ),
    "a new method": ("rrcm/training/methods/new.py", constant, NOTHING, NOTHING),
    "a new file": ("rrcm/training/engine/new.py", constant, NOTHING, NOTHING),
    "a file that is gone": ("rrcm/cli/commands/doctor.py", None, NOTHING, NOTHING),
    "the Python interface": ("rrcm/certification/smoothed.py", constant, NOTHING, NOTHING),
    "a command": ("rrcm/cli/main.py", constant, NOTHING, NOTHING),
    "the scheduler": ("pipeline/workflow/schedule.py", constant, NOTHING, NOTHING),
    "the check of params.yaml": ("pipeline/checked.py", constant, NOTHING, NOTHING),
    "a classifier of others": ("rrcm/inference/foreign/timm.py", constant, NOTHING, NOTHING),
    "a method": (
        "rrcm/training/methods/gaussian.py",
        constant,
        {"train@*-gaussian-*"},
        {"train@*-gaussian-*"},
    ),
    "another": ("rrcm/training/methods/rrcm.py", constant, {"train@*-rrcm-*"}, NOTHING),
    "one in no use": ("rrcm/training/methods/macer.py", constant, NOTHING, NOTHING),
    "an objective": ("rrcm/training/objectives/rrcm.py", constant, {"pretrain@*"}, NOTHING),
    "the loop": ("rrcm/training/engine/loop.py", constant, TRAINED, {"train@*"}),
    "a network": (
        "rrcm/models/networks/vit.py",
        constant,
        {*TRAINED, "export@*", "sample@*"},
        NOTHING,
    ),
    "a kernel": ("rrcm/inference/lanes/kernels.py", constant, NOTHING, {"sample@*"}),
    "a backend": (
        "rrcm/inference/backends/onnx.py",
        constant,
        {"export@*", "sample@*"},
        {"export@*"},
    ),
    "a stopping rule": (
        "rrcm/certification/stopping/none.py",
        constant,
        {"sample@*", "certify@*", "report"},
        NOTHING,
    ),
    "a certificate": (
        "rrcm/certification/certificates/cohen.py",
        constant,
        {"sample@*", "certify@*", "report"},
        {"sample@*", "certify@*", "report"},
    ),
    "noise": ("rrcm/certification/distributions/gaussian.py", constant, {"sample@*"}, {"sample@*"}),
    "a stage": ("pipeline/stages/certify.py", constant, {"certify@*"}, {"certify@*"}),
    "a data set": ("rrcm/data/datasets/digits.py", constant, {"shard"}, NOTHING),
    "a template": ("rrcm/analysis/report.html.jinja", constant, {"report"}, {"report"}),
    "what all import": ("rrcm/core/files.py", constant, {"*"}, {"*"}),
}
LOAD = re.compile(r'registry\.load\(\s*"(\w+)"')
# No purified classifier is exported or combined; the votes of one depend on its config.json, which
# has the digests of its denoiser's code.
PURIFYING = {stage: {"denoiser_networks", "purifiers"} for stage in ("export", "combine", "sample")}
PRESETS = {"digits": "dvc.lock", "mnist": "presets/locks/mnist.lock"}


@pytest.mark.parametrize("preset", PRESETS)
def test_an_edit_runs_what_runs_it(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each edit by itself, and undone, of a copy of the code, the graph and a preset's results."""
    for name in ("rrcm", "pipeline", "code", "presets/published"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.pyc"))
    for name in ("dvc.yaml", "data.dvc", "none"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / f"presets/{preset}.yaml", tmp_path / "params.yaml")
    (tmp_path / "dvc.lock").write_text(committed(PRESETS[preset]))
    Workspace(tmp_path).run("dvc", "init", "--quiet", "--no-scm")
    monkeypatch.chdir(tmp_path)
    with plan.opened() as (graph, order):
        stages = {stage.addressing for stage in order}

        def changed() -> set[str]:
            """The stages whose code differs now."""
            changes = Changes(graph, here=False)
            return {stage.addressing for stage in order if changes.code(stage)}

        assert len(EDITS) > 20
        old = changed()
        assert old <= {"report"}  # which had the runs of presets/mnist-all.yaml
        for name, (file, edit, digits, mnist) in EDITS.items():
            path, patterns = Path(file), digits if preset == "digits" else mnist
            if preset == "mnist" and mnist == digits:
                continue  # of the same graph the same, which digits show
            before = path.read_text() if path.exists() else ""
            path.unlink() if edit is None else path.write_text(edit(before))

            wanted = {s for s in stages if any(fnmatchcase(s, pattern) for pattern in patterns)}
            assert changed() == wanted | old, name
            assert bool(wanted) == bool(patterns), name
            path.write_text(before) if before else path.unlink()


def test_components_that_a_stage_chooses_are_its_dependencies():
    """dvc.yaml names the kinds of all that `registry.load` may load in a stage, and in those."""
    graph = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]
    assert len(graph) == 13
    for stage, definition in graph.items():
        deps = definition.get("do", definition)["deps"]
        listed = {one.split("/")[2] for one in deps if one.startswith("code/components/")}
        left, loaded = [f"pipeline/stages/{stage}.py"], set()
        while left:
            files = json.loads(code.closure(Path(left.pop())))
            kinds = {*LOAD.findall("".join(Path(file).read_text() for file in files))} - loaded
            loaded |= kinds
            folders = [Path("rrcm", registry.FOLDERS[kind]) for kind in kinds]
            left += [str(path) for folder in folders for path in folder.glob("[a-z]*.py")]

        assert loaded - PURIFYING.get(stage, set()) == listed, stage
