"""`rrcm accept`: a change that changes no result trains nothing again, and no other is let through.

The comparison is tried on programs of a few lines, the command on the real miniature.
"""

import json
import shutil

import pytest
from builders import many
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from workspace import EVAL, RUN, Workspace

from pipeline.acceptance.comparison import compare
from pipeline.acceptance.modules import Tree
from pipeline.acceptance.programs import Code, Program

SCRIPT = "p/main.py"
REGISTRY = """
import importlib
from pathlib import Path
def require(folder, name):
    if not (Path(__file__).parent / folder / f"{name}.py").is_file():
        raise ValueError(name)
def load(folder, name):
    require(folder, name)
    return importlib.import_module(f"p.{folder}.{name}")
"""


def program(*files: dict[str, str] | str, listed: set[str] | None = None) -> Program:
    """A script, or files by path of which ``p/main.py`` is the script."""
    (texts,) = ({SCRIPT: one} if isinstance(one, str) else one for one in files)
    code = Code(Tree(texts, lambda path: texts[path].encode()))
    return Program(code, SCRIPT, set(texts) if listed is None else listed)


def same(old: dict[str, str] | str, new: dict[str, str] | str) -> bool:
    """Whether two programs are the same, asked both ways."""
    there = compare(program(old), program(new)).difference
    back = compare(program(new), program(old)).difference
    assert (there is None) == (back is None)
    return there is None


SAME = {
    "docstrings": ('def f():\n    "A."\n    return 1\nprint(f())', "def f(): return 1\nprint(f())"),
    "comments": ("x = 1  # one\nprint(x)", "x = 1\n\n\nprint(x)"),
    "annotations": (
        "def f(a: int) -> int:\n    b: int = a\n    return b\nprint(f(1))",
        "def f(a: float):\n    b = a\n    return b\nprint(f(1))",
    ),
    "private name": ("def _f(): return 1\nprint(_f())", "def _g(): return 1\nprint(_g())"),
    "recursion": (
        "def f(n): return g(n) if n else 0\ndef g(n): return f(n - 1)\nprint(f(3))",
        "def b(n): return a(n - 1)\ndef a(n): return b(n) if n else 0\nprint(a(3))",
    ),
    "class": ("class A(Exception): pass\nraise A", "class B(Exception): pass\nraise B"),
    "local": (
        "def f(a):\n    found = [x for x in a]\n    return found\nprint(f([1]))",
        "def f(a):\n    rows = [row for row in a]\n    return rows\nprint(f([1]))",
    ),
    "way of importing": (
        "from torch.nn import functional as F\nprint(F.relu)",
        "import torch\nprint(torch.nn.functional.relu)",
    ),
    "what nothing uses": ("def f(): return 1\nprint(2)", "def g(): return 3\nprint(2)"),
    "for type checkers": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a\nprint(2)",
        "print(2)",
    ),
    "inner import": (
        {SCRIPT: "def f():\n    from p import a\n    return a.x\nprint(f())", "p/a.py": "x = 1"},
        {SCRIPT: "def f():\n    from p.b import y\n    return y\nprint(f())", "p/b.py": "y = 1"},
    ),
    "split file": (
        {
            SCRIPT: "from p import a\nprint(a.f(), a.g())",
            "p/a.py": "c = 2\ndef f(): return c\ndef g(): return f()",
        },
        {
            SCRIPT: "from p.r.b import g\nfrom p.r.c import f\nprint(f(), g())",
            "p/r/b.py": "from p.r.c import f\ndef g(): return f()",
            "p/r/c.py": "c = 2\ndef f(): return c",
        },
    ),
    "components moved": (
        {
            SCRIPT: "from p import registry\nprint(registry.load('methods', str(1)).loss(2))",
            "p/registry.py": REGISTRY,
            "p/methods/a.py": "def loss(x): return x",
        },
        {
            SCRIPT: "from p.core import registry\nprint(registry.load('ways', str(1)).loss(2))",
            "p/core/registry.py": "FOLDERS = {'ways': 'training/methods'}\n"
            + REGISTRY.replace("{folder}", "{FOLDERS[folder].replace('/', '.')}"),
            "p/training/methods/a.py": "def loss(x): return x",
        },
    ),
    "logger": ("import logging\nl = logging.getLogger(__name__)\nl.info(1)",) * 2,
}
DIFFERENT = {
    "constant": ("x = 1\nprint(x)", "x = 2\nprint(x)"),
    "kind of constant": ("x = 1\nprint(x)", "x = 1.0\nprint(x)"),
    "default": ("def f(a=1): return a\nprint(f())", "def f(a=2): return a\nprint(f())"),
    "parameter": ("def f(a): return a\nprint(f(a=1))", "def f(b): return b\nprint(f(b=1))"),
    "field": (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nprint(A)",
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: float\nprint(A)",
    ),
    "order of fields": (
        "class A:\n    x: int\n    y: int\nprint(A)",
        "class A:\n    y: int\n    x: int\nprint(A)",
    ),
    "decorator": (
        "import p1\ndef f(): return 1\nprint(f())",
        "import p1\n@p1.d\ndef f(): return 1\nprint(f())",
    ),
    "annotation that a decorator reads": (
        "import p1\n@p1.d\ndef f(a: int): return 1\nprint(f(1))",
        "import p1\n@p1.d\ndef f(a: str): return 1\nprint(f(1))",
    ),
    "docstring that is read": (
        'def f():\n    "a"\nprint(f.__doc__)',
        'def f():\n    "b"\nprint(f.__doc__)',
    ),
    "name that is read": (
        "class A: pass\nprint(A().__class__.__name__)",
        "class B: pass\nprint(B().__class__.__name__)",
    ),
    "attribute": ("print((1).real)", "print((1).imag)"),
    "operator": ("print(1 + 2)", "print(1 - 2)"),
    "order of effects": ("print(1)\nprint(2)", "print(2)\nprint(1)"),
    "lost effect": ("print(1)\nprint(2)", "print(1)"),
    "import for its effect": ("import torch\nprint(1)", "print(1)"),
    "order of imports with effects": (
        {SCRIPT: "import p.a\nimport p.b", "p/a.py": "print(1)", "p/b.py": "print(2)"},
        {SCRIPT: "import p.b\nimport p.a", "p/a.py": "print(1)", "p/b.py": "print(2)"},
    ),
    "which of two that look alike": (
        "class A(Exception): 0\nclass B(Exception): 0\ntry:\n    raise A\nexcept A:\n    pass",
        "class A(Exception): 0\nclass B(Exception): 0\ntry:\n    raise A\nexcept B:\n    pass",
    ),
    "one list for two": (
        "a = []\nb = []\ndef f(): a.append(1)\ndef g(): return a\nf()\nprint(g())",
        "a = []\nb = []\ndef f(): a.append(1)\ndef g(): return b\nf()\nprint(g())",
    ),
    "local for global": (
        "x = 1\ndef f():\n    return x\nprint(f())",
        "x = 1\ndef f():\n    x = 1\n    return x\nprint(f())",
    ),
    "two locals swapped": (
        "def f():\n    a, b = 1, 2\n    return a\nprint(f())",
        "def f():\n    a, b = 1, 2\n    return b\nprint(f())",
    ),
    "unpacked": ("a, b = 1, 2\nprint(a)", "a, b = 1, 2\nprint(b)"),
    "shadowed": (
        "x = [1]\ndef f(): return [x for x in x]\nprint(f())",
        "x = [2]\ndef f(): return [x for x in x]\nprint(f())",
    ),
    "package that is imported first": (
        {SCRIPT: "import p.q.a", "p/q/__init__.py": "print(1)", "p/q/a.py": ""},
        {SCRIPT: "import p.q.a", "p/q/__init__.py": "print(2)", "p/q/a.py": ""},
    ),
    "lazy name": (
        {SCRIPT: "from p.q import a\nprint(a)", "p/q.py": "def __getattr__(name): return 1"},
        {SCRIPT: "from p.q import a\nprint(a)", "p/q.py": "def __getattr__(name): return 2"},
    ),
    "closure": (
        "def f(a):\n    b = a\n    def g():\n        return b\n    return g\nprint(f(1)())",
        "def f(a):\n    b = a\n    def g():\n        return a\n    return g\nprint(f(1)())",
    ),
    "import within": (
        "def f():\n    from math import sin as g\n    return g\nprint(f())",
        "def f():\n    from math import cos as g\n    return g\nprint(f())",
    ),
    "import that is tried": (
        "def f():\n    try:\n        import aa\n    except OSError:\n        return 1\nprint(f())",
        "def f():\n    try:\n        import bb\n    except OSError:\n        return 1\nprint(f())",
    ),
    "by name": (
        "def a(): return 1\ndef b(): return 1\nprint(globals()['a']())",
        "def a(): return 1\ndef b(): return 2\nprint(globals()['a']())",
    ),
    "by star": (
        {SCRIPT: "from p.a import *\nprint(f())", "p/a.py": "def f(): return 1"},
        {SCRIPT: "from p.a import *\nprint(f())", "p/a.py": "def f(): return 2"},
    ),
    "module as a value": (
        {SCRIPT: "from p import a\nprint(a, vars)", "p/a.py": "def f(): return 1"},
        {SCRIPT: "from p import a\nprint(a, vars)", "p/a.py": "def f(): return 2"},
    ),
    "component": (
        {
            SCRIPT: "from p.registry import load\nprint(load('methods', str(1)).loss(2))",
            "p/registry.py": REGISTRY,
            "p/methods/a.py": "def loss(x): return x",
        },
        {
            SCRIPT: "from p.registry import load\nprint(load('methods', str(1)).loss(2))",
            "p/registry.py": REGISTRY,
            "p/methods/a.py": "def loss(x): return -x",
        },
    ),
    "other components": (
        {
            SCRIPT: "from p.registry import load\nprint(load('methods', str(1)).loss(2))",
            "p/registry.py": REGISTRY,
            "p/methods/a.py": "def loss(x): return x",
            "p/objectives/a.py": "def loss(x): return x",
        },
        {
            SCRIPT: "from p.registry import load\nprint(load('objectives', str(1)).loss(2))",
            "p/registry.py": REGISTRY,
            "p/methods/a.py": "def loss(x): return x",
            "p/objectives/a.py": "def loss(x): return x",
        },
    ),
    "file beside": (
        {SCRIPT: "from pathlib import Path\nprint(Path(__file__).with_name('t'))", "p/t": "a"},
        {SCRIPT: "from pathlib import Path\nprint(Path(__file__).with_name('t'))", "p/t": "b"},
    ),
    "state of an import": (
        {SCRIPT: "from p.a import f\nf()", "p/a.py": "n = 0\ndef f():\n    global n\n    n += 1"},
        {SCRIPT: "from p.a import f\nf()", "p/a.py": "n = 1\ndef f():\n    global n\n    n += 1"},
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_what_runs_the_same_is_the_same(name: str):
    assert same(*SAME[name])


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_may_run_otherwise_is_different(name: str):
    assert not same(*DIFFERENT[name])
    for one in DIFFERENT[name]:
        assert same(one, one)


NAMES = st.lists(
    st.from_regex(r"_?[a-z]{2,6}_", fullmatch=True), min_size=6, max_size=6, unique=True
)


@many
@given(
    names=NAMES,
    other=NAMES,
    order=st.permutations(range(4)),
    constants=st.lists(st.integers(0, 9), min_size=4, max_size=4),
    place=st.integers(0, 3),
)
def test_names_and_order_leave_a_program_the_same_and_no_constant_does(
    names: list[str], other: list[str], order: list[int], constants: list[int], place: int
):
    def text(names: list[str], order: list[int], constants: list[int]) -> str:
        a, b, c, d, found, each = names
        definitions = [
            f"{a} = {constants[0]}",
            f"def {b}(x={constants[1]}):\n    {found} = x + {a}\n    return {found}",
            f"def {c}(x):\n    return [{b}({each}) for {each} in range({constants[2]})]",
            f"class {d}:\n    y = {constants[3]}\n    def z(self): return {c}(self.y)",
        ]
        return "\n".join([*(definitions[i] for i in order), f"print({d}().z())"])

    old = text(names, [0, 1, 2, 3], constants)
    changed = [value + (i == place) for i, value in enumerate(constants)]

    assert same(old, text(other, order, constants))
    assert not same(old, text(other, order, changed))


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


def accept(workspace: Workspace, *arguments: str, fails: bool = False) -> str:
    return workspace.run("rrcm", "accept", *arguments, fails=fails)


def is_up_to_date(workspace: Workspace) -> bool:
    status = workspace.run("dvc", "status", "--json").strip().splitlines()[-1]
    return json.loads(status) == {}


def test_nothing_to_accept(checkout: Workspace):
    text = (checkout.path / "dvc.lock").read_bytes()

    assert "nothing to accept" in accept(checkout)
    assert (checkout.path / "dvc.lock").read_bytes() == text


def test_an_upgrade_that_only_mends_and_moves_runs_nothing_again(checkout: Workspace):
    """A docstring, an annotation, a private and a public name, and a file in another folder."""
    before = entries(checkout)
    mend(checkout, "rrcm/core/errors.py")
    replace(checkout, LOSSES, "-> Tensor:", '-> "Tensor":')
    folder = checkout.path / "rrcm/mathematics"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""Formulas."""\n')
    (checkout.path / LOSSES).rename(folder / "objective_terms.py")
    for file in [*checkout.path.glob("rrcm/**/*.py"), *checkout.path.glob("pipeline/**/*.py")]:
        text = file.read_text()
        text = text.replace(
            "rrcm.training.shared.losses import", "rrcm.mathematics.objective_terms import"
        )
        there = "from rrcm.mathematics import objective_terms as losses"
        file.write_text(text.replace("from rrcm.training.shared import losses", there))
    shared = "        - rrcm/training/shared\n"
    replace(checkout, "dvc.yaml", shared, shared + "        - rrcm/mathematics\n")

    said = accept(checkout)

    assert "same: rrcm/training/shared/losses.py -> rrcm/mathematics/objective_terms.py" in said
    assert f"train@{RUN}: accepted, nothing that it runs differs" in said
    assert is_up_to_date(checkout)
    assert checkout.repro() == set()
    after = entries(checkout)
    assert {n: e["outs"] for n, e in before.items()} == {n: e["outs"] for n, e in after.items()}
    assert {n: e.get("params") for n, e in before.items()} == {
        n: e.get("params") for n, e in after.items()
    }
    checkout.run("dvc", "commit", "--force")  # DVC itself would write the same
    assert entries(checkout) == after


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
    provenance = checkout.path / f"provenance/train@{RUN}.json"
    before, entry = json.loads(provenance.read_text()), entries(checkout)[f"train@{RUN}"]
    replace(checkout, "rrcm/training/methods/rrcm.py", "PRETRAINED = True", "PRETRAINED = 1")

    assert "say why" in accept(checkout, "--because", " ", fails=True)
    assert json.loads(provenance.read_text()) == before
    said = accept(checkout, f"train@{RUN}", "--because", "1 is True")

    assert f"train@{RUN}: accepted, provenance/train@{RUN}.json says why" in said
    (note,) = json.loads(provenance.read_text())["accepted"]
    assert note["because"] == "1 is True"
    assert note["difference"]["new"]["text"].startswith("PRETRAINED = 1 ")
    assert list(note["code"]) == ["rrcm/training/methods/rrcm.py"]
    rows = {row["path"]: row for row in entries(checkout)[f"train@{RUN}"]["outs"]}
    old = {row["path"]: row for row in entry["outs"]}
    name = f"provenance/train@{RUN}.json"
    assert {path for path in rows if rows[path] != old[path]} == {name}
    assert is_up_to_date(checkout)
    provenance.unlink()
    checkout.run("dvc", "checkout", name)
    assert json.loads(provenance.read_text())["accepted"] == [note]


def test_a_reason_accepts_an_option_that_is_new_and_no_other_value(checkout: Workspace):
    before = entries(checkout)
    field = "    validation_draws: int\n"
    replace(checkout, "rrcm/config/sections.py", field, f"{field}    extra: int\n")
    checkout.edit(lambda params: [recipe.update(extra=1) for recipe in params["recipes"].values()])

    said = accept(checkout, fails=True)
    assert f"train@{RUN}: not accepted" in said
    assert entries(checkout)[f"train@{RUN}"] == before[f"train@{RUN}"]
    accept(checkout, "--because", "nothing reads it")

    assert is_up_to_date(checkout)
    old, new = (
        each[f"train@{RUN}"]["params"]["params.yaml"] for each in (before, entries(checkout))
    )
    assert new == old | {"recipes.finetune": old["recipes.finetune"] | {"extra": 1}}
    provenance = json.loads((checkout.path / f"provenance/train@{RUN}.json").read_text())
    assert provenance["accepted"][0]["new parameters"] == ["recipes.finetune.extra"]
    checkout.edit(lambda params: [recipe.update(extra=2) for recipe in params["recipes"].values()])
    said = accept(checkout, "--because", "another value", fails=True)
    assert "not accepted, params.yaml says otherwise: recipes.finetune" in said


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
    said = accept(checkout, "--because", "1 is True", fails=True)
    assert f"provenance/train@{RUN}.json: not here" in said
    assert entries(checkout) == after


def test_other_parameters_and_data_are_not_accepted(checkout: Workspace):
    before = entries(checkout)
    checkout.edit(lambda params: params["runs"][RUN].update(seed=1))
    mend(checkout, "rrcm/core/errors.py")

    said = accept(checkout, "--because", "no matter", fails=True)

    assert f"train@{RUN}: not accepted, params.yaml says otherwise: runs.{RUN}" in said
    assert f"sample@{EVAL}: not accepted, it comes after" in said
    after = entries(checkout)
    assert after[f"train@{RUN}"] == before[f"train@{RUN}"]
    assert after["shard"] != before["shard"]


def test_code_that_git_never_had_is_not_accepted(checkout: Workspace):
    text = (checkout.path / "dvc.lock").read_text()
    (row,) = {
        r["md5"]
        for r in entries(checkout)["shard"]["deps"]
        if r["path"] == "rrcm/config/sections.py"
    }
    (checkout.path / "dvc.lock").write_text(text.replace(row, "f" * 32))

    said = accept(checkout, fails=True)

    assert (
        "shard: not accepted, rrcm/config/sections.py: git has no commit with the version" in said
    )


@pytest.mark.slow
def test_folders_of_code_are_compared_by_their_files(checkout: Workspace):
    """A stage may depend on a folder, or on its files, before and after."""
    folder = "      - rrcm/data/ingest\n"
    names = ("class_folders", "listing", "manifest", "sharding")
    files = "".join(f"      - rrcm/data/ingest/{name}.py\n" for name in names)
    for before, after in ((folder, files), (files, folder)):
        replace(checkout, "dvc.yaml", before, after)
        accept(checkout, "shard")
        deps = [row["path"] for row in entries(checkout)["shard"]["deps"]]
        assert after.split()[1] in deps
        checkout.commit("dependencies")
    mend(checkout, "rrcm/data/ingest/listing.py")
    accept(checkout, "shard")
    checkout.commit("mended")
    with (checkout.path / "rrcm/data/ingest/listing.py").open("a") as file:
        file.write("print()\n")
    said = accept(checkout, "shard", fails=True)
    assert "shard: not accepted, it runs other code" in said
    assert ": print()" in said
