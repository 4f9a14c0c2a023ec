"""The shape of the code is what docs/design.md says: layers, one graph, listed parameters."""

import ast
import re
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from ruamel.yaml import YAML
from workspace import ROOT

from rrcm.core import registry

ROOMS = (  # of rrcm/; a module may import from its own room and those before it
    *("core", "config", "data", "noise", "models", "training", "diffusion", "inference"),
    *("certification", "evaluation", "analysis", "auditing", "serving", "cli"),
)
LONE = {"__init__.py", "__main__.py", "py.typed"}  # the only files of rrcm/ that are in no room
ABOVE = {  # what of pipeline/ a folder of it may import, beside pipeline/checked.py
    "runtime": set(),
    "stages": {"runtime"},
    "workflow": {"runtime", "stages"},
    "project": {"runtime", "workflow"},
    "cli": {"runtime", "workflow", "project"},
}
FOREIGN = {"dvc", "prefect", "pipeline", "benchmarks", "cli"}
# Nothing of the library names files that only a checkout has. Allowed are: commands of rrcm, where
# they are the way out of an error; the extra that brings a package; the name of the file that
# rrcm/config/ reads as a mapping, in errors of its values; and there, the pointers of artifacts
# that such a file may name.
CHECKOUT = re.compile(r"\bdvc\b|\bpipeline\b|\bpresets/|\bprovenance/|params\.yaml")
ALLOWED = {
    "rrcm/inference/extras.py": {"dvc"},
    "rrcm/config/sections.py": {"params.yaml"},
    "rrcm/config/params.py": {"dvc"},
    "rrcm/data/splits/shards.py": {"params.yaml"},
    "rrcm/models/trained/base/checkpoint.py": {"params.yaml"},
    "rrcm/models/trained/ensembles.py": {"params.yaml"},
}
LIBRARY = sorted(ROOT.glob("rrcm/**/*.py"))
TESTS, SUPPORT = sorted(ROOT.glob("tests/*/test_*.py")), sorted(ROOT.glob("tests/support/*.py"))
CODE = sorted([*LIBRARY, *ROOT.glob("pipeline/**/*.py"), ROOT / "cli.py"])
STAGES = ("shard", "pretrain", "train", "denoise", "export", "member", "combine", "purify")
STAGES += ("represent", "generate", "sample", "certify", "report")
REPORTED = {"certify", "data", "ensembles", "evals", "members", "models", "pretrain", "recipes"}
REPORTED |= {"purified", "report", "runs"}
CHECK = "pipeline/checked.py"  # no part of what the code means: see `pipeline.runtime.code`
COMPONENTS = re.compile(rf"rrcm/({'|'.join(registry.FOLDERS.values())})/[a-z]\w*\.py")


ENTRY_POINTS = {  # group: the modules that the distributions of this checkout register in it
    group: {module.replace(":", ".") for module in points.values()}
    for file in ("pyproject.toml", "pipeline/pyproject.toml")
    for group, points in tomllib.loads((ROOT / file).read_text())["project"]
    .get("entry-points", {})
    .items()
}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> frozenset[str]:
    """Every dotted name that a file imports, at the top or inside a function, or by its name.

    A string that is the name of a module, or of something in one, counts as its import. So does,
    for a string that is a group of entry points, each of them.
    """
    nodes = [*ast.walk(parsed(path))]
    plain = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    froms = [n for n in nodes if isinstance(n, ast.ImportFrom)]
    names = {f"{n.module}.{a.name}" for n in froms for a in n.names}
    strings = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    by_name = {s for s in strings if re.fullmatch(r"[\w.]+", s) and module_files({s})}
    entered = {
        point for group, points in ENTRY_POINTS.items() if group in strings for point in points
    }
    return frozenset(plain | {n.module for n in froms} | names | by_name | entered)


def module_files(names: Iterable[str]) -> frozenset[str]:
    """The files of those names that are a module of ours, or something in one."""
    ours = {name for name in names if name.split(".")[0] in ("rrcm", "pipeline")}
    ours |= {name.rpartition(".")[0] for name in ours}
    files = {f"{name.replace('.', '/')}.py" for name in ours}
    return frozenset(file for file in files if (ROOT / file).is_file())


@cache
def imported_files(path: Path) -> frozenset[str]:
    return module_files(imports(path))


def room(name: str) -> str:
    """``rrcm.core.errors`` is in ``core``."""
    return [*name.split("."), ""][1]


def test_the_library_has_these_rooms_and_no_others():
    entries = {path.name for path in ROOT.glob("rrcm/*")} - {"__pycache__"}

    assert entries == {*ROOMS, *LONE}


def test_a_folder_has_at_most_12_files():
    for folder in {path.parent for path in LIBRARY}:
        assert len([p for p in folder.glob("*.py") if p.name != "__init__.py"]) <= 12, folder


def test_imports_go_down_only():
    """So there is no circle between rooms."""
    entered = set().union(*ENTRY_POINTS.values())  # which the library loads without knowing them
    for path in LIBRARY:
        here = path.relative_to(ROOT / "rrcm").parts[0]
        for name in imports(path) - entered:
            assert name.split(".")[0] not in FOREIGN, f"{path} may not know {name}"
            if name.startswith("rrcm.") and here in ROOMS:
                assert ROOMS.index(room(name)) <= ROOMS.index(here), f"{path} reaches up to {name}"


def test_the_library_knows_files_and_tensors_alone():
    """In what it does and prints; docstrings and comments are not looked at."""
    named: dict[str, set[str]] = {}
    for path in LIBRARY:
        nodes = [*ast.walk(parsed(path))]
        docstrings = {n.value for n in nodes if isinstance(n, ast.Expr)}
        constants = {n for n in nodes if isinstance(n, ast.Constant)} - docstrings
        texts = [n.value for n in constants if isinstance(n.value, str)]
        if words := {word for text in texts for word in CHECKOUT.findall(text)}:
            named[relative(path)] = words
        if not relative(path).startswith("rrcm/config/"):
            assert "rrcm.config.sections.PARAMS" not in imports(path), path

    assert named == ALLOWED


def test_imports_of_the_pipeline_go_down_only():
    for path in ROOT.glob("pipeline/*/**/*.py"):
        here = path.relative_to(ROOT / "pipeline").parts[0]
        used = {room(name) for name in imports(path) if name.startswith("pipeline.")}

        assert used - {here, "checked"} <= ABOVE[here], path


def test_tests_are_in_the_rooms_of_what_they_test():
    folders = {path.parent.name for path in TESTS}

    assert folders <= {*ROOMS, "pipeline", "workflow", "project"}
    assert not [*ROOT.glob("tests/test_*.py")]


def test_no_test_module_is_imported():
    """So each file of tests runs alone; what several share is in tests/support."""
    modules = {test.stem for test in TESTS}
    for path in (*TESTS, *SUPPORT):
        assert not {name.split(".")[-1] for name in imports(path)} & modules, path


def test_no_module_imports_itself_by_way_of_others():
    graph = {relative(path): imported_files(path) for path in CODE}
    for start in graph:
        reached, new = set(), graph[start]
        while new:
            reached |= new
            new = set().union(*(graph[file] for file in new)) - reached
        assert start not in reached


def test_the_trainer_does_not_know_the_methods():
    for module in ("finetune", "engine/loop"):
        assert not any("methods" in n for n in imports(ROOT / f"rrcm/training/{module}.py"))


def test_a_component_imports_no_sibling():
    """What several share has a module of its own, or a file that begins with an underscore."""
    for path in LIBRARY:
        if COMPONENTS.fullmatch(relative(path)):
            siblings = {f for f in imported_files(path) if COMPONENTS.fullmatch(f)}
            assert not {f for f in siblings if (ROOT / f).parent == path.parent}, path


def test_init_files_are_only_a_docstring():
    """So that importing one component never runs, or depends on, its siblings.

    rrcm/__init__.py is exempt: it has the public names, and imports what is behind them when they
    are asked for. At once it imports only what the import of torchvision may need.
    """
    for folder in {path.parent for path in CODE} - {ROOT}:
        tree = parsed(folder / "__init__.py")
        assert ast.get_docstring(tree), folder
        if folder == ROOT / "rrcm":
            first = [node.module for node in tree.body if isinstance(node, ast.ImportFrom)]
            assert first == ["typing", "rrcm.inference"]  # what makes torchvision importable
        elif folder.is_relative_to(ROOT / "rrcm"):
            assert all(isinstance(node, ast.Expr) for node in tree.body), folder


# A section, and the key of it if only that is read.
READ = r'sections\.read\(f?"([^"]+)"(?:, [\w.]+\)\.(\w+)\b(?!\())?'


def test_stages_list_the_parameters_that_they_read():
    """`config.read("runs.{name}")` in a script is `runs.${key}` in dvc.yaml, and the reverse."""
    graph = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]
    for stage in STAGES:
        text = (ROOT / f"pipeline/stages/{stage}.py").read_text()
        own = "sample" if stage == "sample" else "item"
        read = {
            s.rstrip(".")
            .replace("{name}", "${key}")
            .replace("{run.", "${item.")
            .replace("{cfg.", f"${{{own}.")
            for s in map(".".join, re.findall(READ, text))
        }
        if "sections.read_model(" in text:
            read.add("models.${item.model}")
        definition = graph[stage].get("do", graph[stage])

        if stage == "report":  # reads whole sections through params.load()
            read = REPORTED
        assert set(definition["params"]) == read, stage


def test_the_check_of_all_parameters_is_no_dependency():
    graph = (ROOT / "pipeline/runtime/graph.py").read_text()
    stages = {f"pipeline/stages/{stage}.py" for stage in STAGES}

    def users(file: str) -> set[str]:
        return {relative(path) for path in CODE if file in imported_files(path)} & {
            *stages,
            "pipeline/runtime/graph.py",
        }

    assert users(CHECK) == {"pipeline/runtime/graph.py"}
    # what it returns would be parameters that dvc.yaml does not list
    assert re.findall(r".*checked\.\w+.*", graph) == [
        next(line for line in graph.splitlines() if line.startswith("    checked.load()"))
    ]
    assert users("rrcm/config/params.py") == {"pipeline/stages/report.py"}


def test_the_report_reads_only_the_sections_it_lists():
    used = set()
    for file in (
        "rrcm/analysis/entries.py",
        "rrcm/analysis/report.py",
        "pipeline/stages/report.py",
    ):
        used |= set(re.findall(r"(?:params|whole)\.(\w+)", (ROOT / file).read_text()))

    assert "classifiers" in used
    assert used - {"yaml", "load", "classifiers", "runs_of"} | {"members"} == REPORTED


def test_cited_equations_exist():
    """Ours is "eq. 7"; that of a paper is cited after its name: "Cohen et al. (2019), eq. 4"."""
    theory = (ROOT / "docs/theory.md").read_text()
    labels, titles = (
        re.findall(r"tag\{(\w+)\}", theory),
        re.findall(r"^### (Eqs?\. [^:]+)", theory, re.M),
    )
    assert len(labels) == len({*labels}) > 50 and len(titles) == len({*titles})
    known = {*labels} | {label.rstrip("abc") for label in labels}
    found = 0
    for path in CODE:
        text = " ".join(path.read_text().split()).replace(" # ", " ")
        cited = re.findall(r"(?<!\d\d\d\d\), )\beqs?\. (\d+[a-z]?)", text)
        assert {*cited} <= known, path
        found += len(cited)
    assert found > 80


# What is printed of a certificate or of an interval is a bound, and `certify.printed` knows which
# way to round it. Names and keys that hold one, and formats that round.
BOUNDS = {"radius", "p_A", "alpha", "alphas", "acr", "low", "high", "zeta", "confidence", "level"}
BOUNDS |= {"average_certified_radius", "certified_accuracy", "abstention", "any_false", "dkw"}
BOUNDS |= {"most_false", "ours"}
ROUNDS = re.compile(r"\.\d+[efg%]|%")
ESTIMATES = {  # rounded as they are, because they are no bounds
    "rrcm/analysis/report.py": {"radius"},  # the name of a metric
    "rrcm/auditing/audit.py": {"low", "high"},  # inferred of another's table
    "rrcm/auditing/shares.py": {"level"},
}


def rounded(tree: ast.Module) -> set[str]:
    """Names and keys of bounds in the f-strings that round what they print."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            if ROUNDS.search(ast.unparse(node.format_spec)):
                parts = [*ast.walk(node.value)]
                found |= {n.id for n in parts if isinstance(n, ast.Name)}
                found |= {n.attr for n in parts if isinstance(n, ast.Attribute)}
                found |= {n.value for n in parts if isinstance(n, ast.Constant)}
    return {name for name in found if name in BOUNDS}


def test_no_bound_is_rounded_but_by_the_function_that_knows_its_direction():
    for path in CODE:
        assert not rounded(parsed(path)) - ESTIMATES.get(relative(path), set()), path
    for text in (
        "{row.radius:.4f}",
        "{100 * share.low:.1f}",
        "{row['p_A']:.3g}",
        "{1 - alpha:.0%}",
    ):
        assert rounded(ast.parse(f'print(f"{text}")'))  # it finds those that there are
