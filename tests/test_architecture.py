"""The shape of the code is what docs/design.md says: layers, one graph, closed dependencies."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent
LAYERS = [  # a module may import from its own line and the lines above it
    {"errors"},
    {"registry", "files"},
    {"parsing"},
    {"config"},
    {"noise", "schedules", "losses", "checkpoints", "votes", "statistics"},
    {"shards", "batches", "augment"},
    {"models", "data", "certificates"},
    {"classifier", "figures", "loop"},
    {"objectives", "methods", "backends"},
    {"pretrain", "train", "export", "sample", "certify", "report"},
]
RANK = {name: i for i, layer in enumerate(LAYERS) for name in layer}
FOREIGN = {"dvc", "typer", "tqdm", "pipeline", "cli"}
LIBRARY = sorted(ROOT.glob("rrcm/**/*.py"))
CODE = sorted([*LIBRARY, *ROOT.glob("pipeline/*.py"), ROOT / "cli.py"])
STAGES = ("shard", "pretrain", "train", "export", "sample", "certify", "report")
COMPONENTS = re.compile(r"rrcm/(models|data|objectives|methods|certificates|backends)/[a-z]\w*\.py")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> set[str]:
    """Every dotted name that a file imports, at the top or inside a function."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    plain = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    froms = [n for n in nodes if isinstance(n, ast.ImportFrom)]
    return (
        plain | {n.module for n in froms} | {f"{n.module}.{a.name}" for n in froms for a in n.names}
    )


def imported_files(path: Path) -> set[str]:
    files = {Path(*name.split(".")).with_suffix(".py") for name in imports(path)}
    return {
        f.as_posix() for f in files if (ROOT / f).is_file() and f.parts[0] in ("rrcm", "pipeline")
    }


@pytest.mark.parametrize("path", LIBRARY, ids=relative)
def test_imports_go_down_only(path: Path):
    here = path.relative_to(ROOT / "rrcm").with_suffix("").parts[0]
    for name in imports(path):
        package, _, rest = name.partition(".")
        assert package not in FOREIGN, f"library code may not know {package}"
        if package == "rrcm" and rest and here != "__init__":
            assert RANK[rest.split(".")[0]] <= RANK[here], f"reaches up to {name}"


def test_the_trainer_does_not_know_the_methods():
    for module in ("train", "loop"):
        assert not any("methods" in name for name in imports(ROOT / f"rrcm/{module}.py"))


def test_one_file_each_knows_dvc_and_typer():
    users = {
        tool: [relative(p) for p in CODE if any(n.split(".")[0] == tool for n in imports(p))]
        for tool in ("dvc", "typer")
    }

    assert users == {"dvc": ["pipeline/graph.py"], "typer": ["cli.py"]}


@pytest.mark.parametrize("path", sorted(ROOT.glob("rrcm/**/__init__.py")), ids=relative)
def test_init_files_are_only_a_docstring(path: Path):
    """So that importing one component never runs, or depends on, its siblings."""
    assert all(isinstance(node, ast.Expr) for node in ast.parse(path.read_text()).body)


@pytest.mark.parametrize("path", CODE, ids=relative)
def test_modules_and_functions_fit_in_the_head(path: Path):
    text = path.read_text()
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]

    assert len(text.splitlines()) <= 300
    assert all(n.end_lineno - n.lineno <= 60 for n in functions)
    assert not any(n.args.kwarg and n.name[0] != "_" for n in functions), "no public **kwargs"
    assert not re.search(r"except( Exception)?:|# ?TODO", text)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_one_thin_script(stage: str):
    assert len((ROOT / f"pipeline/{stage}.py").read_text().splitlines()) <= 60


def repository(preset: str, tmp_path: Path) -> dict[str, tuple[set[str], set[str]]]:
    """Stage -> (files it depends on, parameters it reads), of dvc.yaml under a preset."""
    for file in ("dvc.yaml", "data.dvc"):
        (tmp_path / file).write_text((ROOT / file).read_text())
    (tmp_path / "params.yaml").write_text((ROOT / preset).read_text())
    with Repo.init(str(tmp_path), no_scm=True) as repo:
        stages = [stage for stage in repo.index.stages if "pipeline." in (stage.cmd or "")]
        return {
            stage.name: (
                {dep.def_path for dep in stage.deps if dep.def_path != "params.yaml"},
                {key for dep in stage.deps if hasattr(dep, "params") for key in dep.params},
            )
            for stage in stages
        }


@pytest.mark.parametrize("preset", ["presets/digits.yaml", "tests/mini.yaml"])
def test_dependencies_are_exactly_what_runs(preset: str, tmp_path: Path):
    """Too few would leave stale results behind; too many would train again for nothing."""
    listed_by_some, reached_by_some = defaultdict(set), defaultdict(set)
    for stage, (deps, _) in repository(preset, tmp_path).items():
        script = stage.partition("@")[0]
        listed = {dep for dep in deps if dep.endswith(".py")}
        reached = {f"pipeline/{script}.py", *(dep for dep in listed if COMPONENTS.fullmatch(dep))}
        while more := set().union(*(imported_files(ROOT / file) for file in reached)) - reached:
            reached |= more
        listed_by_some[script] |= listed
        reached_by_some[script] |= reached

        assert reached <= listed, stage
    assert listed_by_some == reached_by_some


def test_stages_depend_on_the_components_that_params_name(tmp_path: Path):
    stages = repository("tests/mini.yaml", tmp_path)
    wanted = {
        "shard": {"rrcm/data/digits.py"},
        "pretrain@tiny": {"rrcm/objectives/rrcm.py", "rrcm/models/vit.py"},
        "train@tiny-gaussian-s050": {"rrcm/methods/gaussian.py", "rrcm/models/vit.py"},
        "export@tiny-gaussian-s050": {"rrcm/models/vit.py"},
        "sample@tiny-rrcm-s050-e050": {"rrcm/backends/onnx.py"},
        "certify@tiny-rrcm-s050-e050": {"rrcm/certificates/cohen.py"},
    }

    for stage, files in wanted.items():
        assert files <= stages[stage][0]
    assert "pretrained/tiny" in stages["train@tiny-rrcm-s050"][0]
    assert "pretrained/tiny" not in stages["train@tiny-gaussian-s050"][0]


def test_stages_list_the_parameters_that_they_read():
    """`config.read("runs.{name}")` in a script is `runs.${key}` in dvc.yaml, and the reverse."""
    graph = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]
    for stage in STAGES:
        text = (ROOT / f"pipeline/{stage}.py").read_text()
        read = {
            s.replace("{name}", "${key}").replace("{run.", "${item.")
            for s in re.findall(r'config\.read\(f?"([^"]+)"', text)
        }
        if "config.read_model(" in text:
            read.add("models.${item.model}")
        definition = graph[stage].get("do", graph[stage])

        if stage == "report":  # reads whole sections through config.load()
            read = {"certify", "data", "evals", "report", "runs", "sample"}
        assert set(definition["params"]) == read, stage


def test_the_report_reads_only_the_sections_it_lists():
    used = set()
    for file in ("rrcm/report.py", "rrcm/report.html.jinja", "pipeline/report.py"):
        used |= set(re.findall(r"params\.(\w+)", (ROOT / file).read_text()))

    assert used - {"yaml"} == {"certify", "data", "evals", "report", "runs", "sample"}


@pytest.mark.parametrize("path", CODE, ids=relative)
def test_cited_equations_exist(path: Path):
    """Ours is "(eq. 7)" ; an equation of a paper is cited beside the paper, without parentheses."""
    theory = (ROOT / "docs/theory.md").read_text()
    cited = re.findall(r"\((?:docs/)?(?:theory\.md, )?eq\. (\d+)", path.read_text())

    assert all(re.search(rf"tag\{{{number}[a-z]?\}}", theory) for number in cited)


def test_everything_public_says_what_it_does():
    for path in CODE:
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), path
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                stage = path.parent.name == "pipeline" and node.name == "main"
                assert stage or ast.get_docstring(node), f"{path}: {node.name}"
