"""The shape of the code is what docs/design.md says: layers, one graph, closed dependencies."""

import ast
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML

from rrcm import registry

Change = Callable[[dict[str, Any]], None]
ROOT = Path(__file__).parent.parent
LAYERS = [  # a module may import from its own line and the lines above it
    {"errors"},
    {"registry", "files", "locks", "processes"},
    {"parsing", "pictures"},
    {"limits"},
    {"config"},
    {"settings", "denoiser_config", "experiments"},
    {"params", "defaults"},
    {"draws", "distributed", "computing"},
    {"evidence", "bounds", "noise", "schedules", "losses", "checkpoints", "philox"},
    {"attacks", "diffusion", "frechet"},
    {"looks", "votes", "planner", "engine", "randomness", "plausibility"},
    {"journal", "shards", "raw", "batches", "transforms", "quantize"},
    {"models", "data", "certificates", "stopping", "noises", "denoisers", "denoising", "purifiers"},
    {"untrusted", "classifier", "denoiser", "condition", "voters", "folders", "ensembles"},
    {"reference", "unets", "behind", "purified"},
    {"augment", "loading", "loop"},
    {"folding", "objectives", "methods", "backends", "drawing"},
    {"foreign", "guards"},
    {"pretrain", "train", "denoise", "export", "sample", "certify", "prefixes", "checking"},
    {"generate", "represent", "realism", "sheets"},
    {"tsv", "smoothed"},
    {"analysis", "auditing", "serving"},
]
RANK = {name: i for i, layer in enumerate(LAYERS) for name in layer}
FOREIGN = {"dvc", "prefect", "typer", "tqdm", "pipeline", "cli"}
LIBRARY = sorted(ROOT.glob("rrcm/**/*.py"))
CODE = sorted([*LIBRARY, *ROOT.glob("pipeline/**/*.py"), ROOT / "cli.py"])
STAGES = ("shard", "pretrain", "train", "denoise", "export", "member", "combine", "purify")
STAGES += ("represent", "generate", "sample", "certify", "report")
FOLDERS = {
    *("models", "data", "objectives", "methods", "certificates", "backends"),
    *("stopping", "noises", "folding", "foreign", "denoisers", "denoising", "purifiers"),
}
SEVERAL = ("denoisers", "purified", "representations", "generations")  # of some architecture
CLI = ("data", "flow", "measure")
PACKAGES = {"raw", "analysis", "auditing", "serving"}  # of modules that belong together
REPORTED = {"certify", "data", "ensembles", "evals", "members", "models", "pretrain", "recipes"}
REPORTED |= {"purified", "report", "runs"}
# Every stage checks the whole of params.yaml, components that it does not run included. That may
# refuse a result but not change it, so it is no dependency: otherwise every edit of any component
# would run everything again.
CHECK = "pipeline/checked.py"
COMPONENTS = re.compile(rf"rrcm/({'|'.join(FOLDERS)})/[a-z]\w*\.py")


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


def test_few_files_know_dvc_prefect_and_typer():
    users = {
        tool: [relative(p) for p in CODE if any(n.split(".")[0] == tool for n in imports(p))]
        for tool in ("dvc", "prefect", "typer")
    }

    assert users["dvc"] == ["pipeline/flow/plan.py", "pipeline/flow/repro.py", "pipeline/graph.py"]
    assert {Path(user).parent.as_posix() for user in users["prefect"]} == {"pipeline/flow"}
    assert users["typer"] == ["cli.py", *(f"pipeline/cli_{n}.py" for n in CLI)]


def test_components_are_the_folders_of_the_library():
    assert {path.parent.name for path in ROOT.glob("rrcm/*/__init__.py")} == FOLDERS | PACKAGES


@pytest.mark.parametrize("path", [p for p in LIBRARY if p.parent.name in FOLDERS], ids=relative)
def test_a_component_imports_no_sibling(path: Path):
    """What several share has a module of its own, or a file that begins with an underscore."""
    siblings = {f for f in imported_files(path) if COMPONENTS.fullmatch(f)}

    assert not {f for f in siblings if Path(f).parent.name == path.parent.name}


@pytest.mark.parametrize("path", sorted(ROOT.glob("rrcm/**/__init__.py")), ids=relative)
def test_init_files_are_only_a_docstring(path: Path):
    """So that importing one component never runs, or depends on, its siblings."""
    assert all(isinstance(node, ast.Expr) for node in ast.parse(path.read_text()).body)


@pytest.mark.parametrize("path", CODE, ids=relative)
def test_modules_and_functions_fit_in_the_head(path: Path):
    text = path.read_text()
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]

    assert len(text.splitlines()) <= 400
    assert all(n.end_lineno - n.lineno <= 60 for n in functions)
    assert not any(n.args.kwarg and n.name[0] != "_" for n in functions), "no public **kwargs"
    assert not re.search(r"except( Exception)?:|# ?TODO", text)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_one_thin_script(stage: str):
    assert len((ROOT / f"pipeline/{stage}.py").read_text().splitlines()) <= 60


def repository(
    preset: str, folder: Path, change: Change = lambda params: None
) -> dict[str, tuple[set[str], set[str]]]:
    """Stage -> (files it depends on, parameters it reads), of dvc.yaml under a changed preset.

    A folder of code stands for all its files.
    """
    folder.mkdir(exist_ok=True)
    for file in ("dvc.yaml", "data.dvc"):
        (folder / file).write_text((ROOT / file).read_text())
    yaml = YAML()
    params = yaml.load(ROOT / preset)
    change(params)
    yaml.dump(params, folder / "params.yaml")
    with Repo.init(str(folder), no_scm=True) as repo:
        stages = [stage for stage in repo.index.stages if "pipeline." in (stage.cmd or "")]
        return {
            stage.name: (
                set().union(*(files(dep.def_path) for dep in stage.deps)) - {"params.yaml"},
                {key for dep in stage.deps if hasattr(dep, "params") for key in dep.params},
            )
            for stage in stages
        }


def files(dependency: str) -> set[str]:
    if not dependency.startswith("rrcm/") or not (ROOT / dependency).is_dir():
        return {dependency}
    return {relative(path) for path in (ROOT / dependency).glob("*.py")} - {
        f"{dependency}/__init__.py"
    }


def reach(script: str, listed: set[str]) -> set[str]:
    """The code that a stage runs: its script, components that params name, and their imports."""
    reached = {f"pipeline/{script}.py", *(dep for dep in listed if COMPONENTS.fullmatch(dep))}
    while more := set().union(*(imported_files(ROOT / f) for f in reached)) - reached - {CHECK}:
        reached |= more
    return reached


def using(
    backend: str,
    stop: str,
    noise: str,
    data: str,
    network: str = "vit",
    method: str = "gaussian",
) -> Change:
    def change(params: dict[str, Any]) -> None:
        params["sample"].update(backend=backend, stop=stop, noise=noise)
        params["data"].update(name=data)
        for section in ("pretrain", "runs", "evals", *SEVERAL):
            for entry in params[section].values():
                entry["architecture"] = network
        params["ensembles"] = {"both": {"members": 1, "rule": "plurality", "consensus": 0}}
        run, *_, last = params["runs"]
        params["runs"][last]["method"] = method
        params["members"] = {"both-1": {"ensemble": "both", "place": 1, "run": run}}

    return change


VARIANTS = {
    "grid on onnx": using("onnx", "grid", "gaussian", "digits"),
    "none on torch": using("torch", "none", "sound", "cifar10", "resnet"),
    "anytime on torch": using("torch", "anytime", "secure", "imagenet", method="smoothadv"),
}


@pytest.mark.parametrize("preset", ["presets/digits-diffusion.yaml"])  # which has all sections
def test_dependencies_are_exactly_what_runs(preset: str, tmp_path: Path):
    """Too few would leave stale results behind; too many would do it all again for nothing.

    A list cannot follow a parameter but by file name, so it serves all values of a parameter: what
    is listed must be reached under some, and what is reached must be listed under each.
    """
    listed_by_some, reached_by_some = defaultdict(set), defaultdict(set)
    for number, change in enumerate(VARIANTS.values()):
        for stage, (deps, _) in repository(preset, tmp_path / str(number), change).items():
            script = stage.partition("@")[0]
            listed = {dep for dep in deps if dep.endswith(".py")}
            reached = reach(script, listed)
            listed_by_some[script] |= listed
            reached_by_some[script] |= reached

            assert reached <= listed, f"{stage} does not list {sorted(reached - listed)}"
    for script, listed in listed_by_some.items():
        spare = listed - reached_by_some[script]
        assert not spare, f"{script} lists {sorted(spare)} for nothing"


def test_stages_depend_on_the_components_that_params_name(tmp_path: Path):
    stages = repository("tests/mini.yaml", tmp_path)
    wanted = {
        "shard": {"rrcm/data/digits.py"},
        "pretrain@tiny": {"rrcm/objectives/rrcm.py", "rrcm/models/vit.py"},
        "train@tiny-gaussian-s050": {"rrcm/methods/gaussian.py", "rrcm/models/vit.py"},
        "export@tiny-gaussian-s050": {"rrcm/models/vit.py", "rrcm/folding/vit.py"},
        "sample@tiny-rrcm-s050-e050": {
            *("rrcm/backends/onnx.py", "rrcm/noises/gaussian.py", "rrcm/stopping/grid.py"),
            *("rrcm/models/vit.py", "rrcm/folding/vit.py"),
        },
        "certify@tiny-rrcm-s050-e050": {
            "rrcm/stopping/grid.py",
            *(f"rrcm/certificates/{name}.py" for name in registry.names("certificates")),
        },
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
        own = "sample" if stage == "sample" else "item"
        read = {
            s.replace("{name}", "${key}").replace("{run.", "${item.").replace("{cfg.", f"${{{own}.")
            for s in re.findall(r'config\.read\(f?"([^"]+)"', text)
        }
        if "config.read_model(" in text:
            read.add("models.${item.model}")
        definition = graph[stage].get("do", graph[stage])

        if stage == "report":  # reads whole sections through params.load()
            read = REPORTED
        assert set(definition["params"]) == read, stage


def test_the_check_of_all_parameters_is_no_dependency():
    """The one exemption from `test_dependencies_are_exactly_what_runs`."""
    graph = (ROOT / "pipeline/graph.py").read_text()
    stages = {f"pipeline/{stage}.py" for stage in STAGES}

    def users(file: str) -> set[str]:
        return {relative(path) for path in CODE if file in imported_files(path)} & {
            *stages,
            "pipeline/graph.py",
        }

    assert users(CHECK) == {"pipeline/graph.py"}
    # what it returns would be parameters that dvc.yaml does not list
    assert re.findall(r".*checked\.\w+.*", graph) == [
        next(line for line in graph.splitlines() if line.startswith("    checked.load()"))
    ]
    assert users("rrcm/params.py") == {"pipeline/report.py"}
    assert users("rrcm/checking.py") == set()


def test_the_report_reads_only_the_sections_it_lists():
    used = set()
    for file in ("rrcm/analysis/entries.py", "rrcm/analysis/report.py", "pipeline/report.py"):
        used |= set(re.findall(r"(?:params|whole)\.(\w+)", (ROOT / file).read_text()))

    assert "classifiers" in used
    assert used - {"yaml", "load", "classifiers", "runs_of"} | {"members"} == REPORTED


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
