"""Without extras, rrcm certifies and reports; what needs an extra names it in one line.

The wheel is complete by itself, and a checkout adds its own commands to the same program.
"""

import ast
import email
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import installations
import pytest
from onnx_networks import pictures, save
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from workspace import ROOT

import rrcm
from rrcm.core.errors import ConfigError
from rrcm.inference import extras
from rrcm.inference.extras import EXTRAS, RUNTIMES

Run = Callable[..., str]
CODE = [*ROOT.glob("rrcm/**/*.py"), *ROOT.glob("pipeline/**/*.py")]
WITH_ONNX = "google"  # protobuf, without which there is no onnx
DEVELOPMENT = {"docs", "dev"}  # extras that no module imports
ALL_MODULES = """
import importlib, pkgutil, rrcm
for module in pkgutil.walk_packages(rrcm.__path__, "rrcm."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        print(module.name, error.name.partition(".")[0])
"""
CERTIFIED = """
import rrcm, torch
network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2)).eval()
images = torch.rand(4, 1, 8, 8)
smoothed = rrcm.smooth(network, sigma=0.5, classes=2)
answers = smoothed.certify(images, n=500, votes="votes.jsonl", progress=False)
rrcm.report(answers, [0, 1, 0, 1]).save("page.html")
"""


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(one).name) for one in requirements}


@cache
def providers() -> dict[str, set[str]]:
    """Module -> the installed distributions that have it."""
    found = packages_distributions()
    return {module: {*map(canonicalize_name, owners)} for module, owners in found.items()}


def imported(path: Path) -> set[str]:
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    plain = {one.name for node in nodes if isinstance(node, ast.Import) for one in node.names}
    froms = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in plain | froms}


def test_every_package_that_is_imported_is_in_the_core_or_names_its_extra():
    core = names(installations.PROJECT["dependencies"])
    for path in CODE:
        for module in imported(path) - {*sys.stdlib_module_names, "rrcm", "pipeline", WITH_ONNX}:
            assert providers().get(module, set()) & core or module in EXTRAS, (path, module)


def test_the_named_extra_has_the_package():
    """Those that are installed here; of the two runtimes that is one."""
    for module, extras_of in EXTRAS.items():
        some = set().union(*(names(installations.EXTRAS[extra]) for extra in extras_of))
        assert module not in providers() or providers()[module] & some, module
    assert set().union(*EXTRAS.values()) == {*installations.EXTRAS} - DEVELOPMENT


def test_the_two_runtimes_differ_in_the_runtime_alone():
    """They install the same files, so nothing may bring both."""
    cpu, gpu = (names(installations.EXTRAS[extra]) for extra in RUNTIMES)

    assert cpu ^ gpu == {"onnxruntime", "onnxruntime-gpu"}
    assert not (cpu ^ gpu) & installations.closure(installations.PROJECT["dependencies"])


def test_an_absent_package_is_one_line_that_names_its_extra(monkeypatch):
    for module, (extra, *_) in EXTRAS.items():
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
        with pytest.raises(ConfigError) as caught, extras.named("rrcm something"):
            __import__(module)

        said = str(caught.value)
        assert said.startswith(f'rrcm something: needs the extra "{extra}"') and "\n" not in said
        assert said.endswith(f': pip install "rrcm[{extra}]"')


@pytest.mark.parametrize("name", ["no_such_package", "rrcm.no_such_module", "onnx.no_such_module"])
def test_another_missing_module_is_no_matter_of_extras(name: str):
    with pytest.raises(ModuleNotFoundError), extras.named("rrcm something"):
        __import__(name)


def environment(folder: Path, *wanted: str, checkout: bool = False) -> Run:
    """A function that runs a program of an environment with some extras."""
    binaries = installations.install(folder, *wanted, checkout=checkout)

    def run(program: str, *words: str, cwd: Path, fails: bool = False) -> str:
        clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(
            [binaries / program, *words],
            cwd=cwd,
            env=clean | {"OMP_NUM_THREADS": "1"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=500,
        )
        assert (done.returncode != 0) == fails, done.stdout
        return done.stdout

    return run


@pytest.fixture(scope="module")
def core(tmp_path_factory) -> Run:
    return environment(tmp_path_factory.mktemp("core") / "env")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with an ONNX file and four images in two classes."""
    pictures(tmp_path / "images", 6, each=2)
    save(tmp_path / "net.onnx", 6)
    return tmp_path


CERTIFY = ("certify", "--onnx", "net.onnx", "--images", "images", "--sigma", ".5", "--n", "100")
CERTIFY += ("--size", "6", "--channels", "1")
RUNTIME = 'needs the extra "cpu", or "gpu" for an NVIDIA GPU: pip install "rrcm[cpu]"'


def test_the_core_names_the_extra_of_what_it_lacks(core: Run, place: Path):
    before = {*place.rglob("*")}

    assert core("rrcm", *CERTIFY, cwd=place, fails=True) == f"error: rrcm certify: {RUNTIME}\n"
    served = ("serve", "--onnx", "net.onnx", "--sigma", ".5")
    assert core("rrcm", *served, cwd=place, fails=True) == (
        'error: rrcm serve: needs the extra "serve": pip install "rrcm[serve]"\n'
    )
    assert {*place.rglob("*")} == before


@pytest.mark.slow
def test_modules_of_the_core_import_without_extras(core: Run, tmp_path: Path):
    lines = core("python", "-c", ALL_MODULES, cwd=tmp_path).splitlines()
    lacking = {module: EXTRAS[package] for module, package in map(str.split, lines)}

    assert lacking == {
        **{f"rrcm.inference.{name}": RUNTIMES for name in ("backends.onnx", "foreign.onnx")},
        "rrcm.inference.foreign._onnx_file": RUNTIMES,
        **dict.fromkeys(("rrcm.inference.export", "rrcm.models.trained.quantize"), RUNTIMES),
        "rrcm.certification.fastest": RUNTIMES,
        "rrcm.data.ingest.sharding": ("train",),
        **dict.fromkeys(
            ("rrcm.diffusion.networks.unet", "rrcm.diffusion.openai_unet"), ("diffusion",)
        ),
        "rrcm.certification.attacking.library": ("attack",),
        **{
            f"rrcm.serving.{name}": ("serve",)
            for name in "application bearer endpoints metrics stream upload".split()
        },
        "rrcm.cli.commands.serve": ("serve",),
    }


@pytest.mark.slow
def test_the_core_certifies_reports_audits_compares_and_derives(core: Run, place: Path):
    """From Python; on the command line it reads what came of it."""
    core("python", "-c", CERTIFIED, cwd=place)

    assert (place / "page.html").exists()
    assert "nothing was drawn" in core(
        "rrcm", "derive", "votes.jsonl", "--out", "table.csv", cwd=place
    )
    for command in ("report", "audit"):
        assert "votes" in core("rrcm", command, "votes.jsonl", cwd=place)
    assert "4 images" in core("rrcm", "compare", "votes.jsonl", "table.csv", cwd=place)


@pytest.mark.slow
def test_with_a_runtime_it_certifies_an_onnx_file(tmp_path_factory, place: Path):
    run = environment(tmp_path_factory.mktemp("runtime") / "env", "gpu")

    said = run("rrcm", *CERTIFY, cwd=place)

    assert "4 images, n0 = 100, n = 100" in said
    (votes,) = place.glob(".rrcm/votes/*.jsonl")
    (table,) = place.glob("results/*.csv")
    assert "nothing was drawn" in run("rrcm", "derive", str(votes), cwd=place)
    assert str(table.name) in run("rrcm", "audit", str(table.relative_to(place)), cwd=place)


OTHER = "raise SystemExit('somebody else\\'s pipeline was imported')\n"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder with a package of somebody else, which is called pipeline."""
    (tmp_path / "pipeline/cli").mkdir(parents=True)
    for file in ("pipeline/__init__.py", "pipeline/cli/__init__.py", "pipeline/cli/main.py"):
        (tmp_path / file).write_text(OTHER)
    return tmp_path


def files(folder: Path) -> set[Path]:
    """All paths below ``folder / rrcm``, relative to it, without compiled files."""
    found = {path.relative_to(folder) for path in (folder / "rrcm").rglob("*")}
    return {path for path in found if "__pycache__" not in path.parts}


@pytest.mark.slow
def test_the_wheel_has_one_package_and_its_own_commands_alone(core: Run, elsewhere: Path):
    code = "import rrcm, sys; print(rrcm.__version__, rrcm.__file__, 'torch' in sys.modules)"

    version, file, heavy = core("python", "-c", code, cwd=elsewhere).split()
    listed = core("rrcm", "--help", cwd=elsewhere)
    refused = core("rrcm", "repro", cwd=elsewhere, fails=True)

    site = Path(file).parents[1]
    assert (version, heavy) == (rrcm.__version__, "False") and site.name == "site-packages"
    assert files(site) == files(ROOT) and not (site / "pipeline").exists()
    distribution = importlib.metadata.Distribution.at(site / f"rrcm-{version}.dist-info")
    tops = {file.parts[0] for file in distribution.files} - {".."}  # of programs, in bin/
    assert tops == {"rrcm", f"rrcm-{version}.dist-info"}
    text = (site / f"rrcm-{version}.dist-info/METADATA").read_text()
    assert email.message_from_string(text).get_all("Provides-Extra") == [*installations.EXTRAS]
    assert "\n  certify " in listed and "\n  repro " not in listed
    assert refused == (
        "error: rrcm repro: no such command here; a checkout of rrcm has more: `make env`. "
        "Did you mean 'report'?\n"
    )


@pytest.mark.slow
def test_an_install_of_a_checkout_has_its_commands_and_they_name_their_extra(elsewhere: Path):
    """Wherever it is started, and whatever else is called pipeline there."""
    before = {*ROOT.glob("*"), *ROOT.glob("pipeline/*")}
    run = environment(elsewhere / "env", checkout=True)
    assert {*ROOT.glob("*"), *ROOT.glob("pipeline/*")} == before, "a build leaves nothing behind"

    listed = run("rrcm", "--help", cwd=elsewhere)

    assert "\n  certify " in listed and "\n  repro " in listed
    for command in ("repro", "pull", "data digits", "flow run"):
        said = run("rrcm", *command.split(), cwd=ROOT, fails=True)
        name = command.partition(" ")[0]
        assert said == f'error: rrcm {name}: needs the extra "flow": pip install "rrcm[flow]"\n'
