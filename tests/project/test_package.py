"""The wheel is complete by itself, and a checkout adds its own commands to the same program."""

import email
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import numpy as np
import pytest
from onnx_networks import save
from PIL import Image
from workspace import ROOT

import rrcm

pytestmark = pytest.mark.slow

LEFT_OUT = "PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"
OTHER = "raise SystemExit('somebody else\\'s pipeline was imported')\n"


def run(*command: str | Path, cwd: Path, fails: bool = False) -> str:
    """The output of a command, standard error included, with no environment of this checkout."""
    clean = {key: value for key, value in os.environ.items() if key not in LEFT_OUT}
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=clean,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=500,
    )
    assert (done.returncode != 0) == fails, done.stdout
    return done.stdout


def environment(folder: Path) -> Path:
    """The bin/ of an environment that has the packages of this one, but not those of rrcm."""
    venv.create(folder, symlinks=True)
    (folder / "lib").mkdir(exist_ok=True)
    packages = folder / "packages"
    packages.mkdir()
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "rrcm" not in path.name:  # metadata of a checkout would name commands of `pipeline`
            (packages / path.name).symlink_to(path)
    (site(folder) / "packages.pth").write_text(f"{packages}\n")
    return folder / "bin"


def site(folder: Path) -> Path:
    (found,) = folder.glob("lib/python*/site-packages")
    return found


def files(folder: Path) -> set[Path]:
    """All paths below ``folder / rrcm``, relative to it, without compiled files."""
    found = {path.relative_to(folder) for path in (folder / "rrcm").rglob("*")}
    return {path for path in found if "__pycache__" not in path.parts}


def pip(target: Path, *arguments: str | Path, cwd: Path) -> None:
    quiet = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
    run(sys.executable, "-m", "pip", "--python", target, "install", *quiet, *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of what a build reads, and of what must not be in the wheel."""
    folder = tmp_path_factory.mktemp("source") / "a checkout"
    for name in ("rrcm", "pipeline", "benchmarks", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".ci").mkdir()
    for name in ("cli.py", "pyproject.toml", "README.md", "LICENSE", ".ci/backend.py"):
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def installed(source: Path, tmp_path_factory) -> Path:
    """An environment with the wheel in it."""
    folder = tmp_path_factory.mktemp("installed")
    binaries, before = environment(folder / "env"), {*source.rglob("*")}
    command = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps")
    run(*command, "--no-build-isolation", "--wheel-dir", folder, ".", cwd=source)
    assert {*source.rglob("*")} == before, "a build leaves nothing in the checkout"
    (wheel,) = folder.glob("rrcm-*.whl")
    pip(binaries / "python", wheel, cwd=folder)
    return folder / "env"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder with a package of somebody else, which is called pipeline."""
    (tmp_path / "pipeline/cli").mkdir(parents=True)
    for file in ("pipeline/__init__.py", "pipeline/cli/__init__.py", "pipeline/cli/main.py"):
        (tmp_path / file).write_text(OTHER)
    return tmp_path


def test_the_wheel_has_one_package(installed: Path, tmp_path: Path):
    entries = {path.name for path in site(installed).iterdir() if not path.name.startswith("_")}
    code = "import rrcm, sys; print(rrcm.__version__, rrcm.__file__, 'torch' in sys.modules)"

    said = run(installed / "bin/python", "-c", code, cwd=tmp_path)

    assert entries == {"rrcm", f"rrcm-{rrcm.__version__}.dist-info", "packages.pth"}
    assert said == f"{rrcm.__version__} {site(installed)}/rrcm/__init__.py False\n"
    assert files(site(installed)) == files(ROOT)
    text = next(site(installed).glob("rrcm-*.dist-info/METADATA")).read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert email.message_from_string(text).get_all("Provides-Extra") == [
        *extras["optional-dependencies"]
    ]


def test_the_wheel_certifies_a_classifier_on_a_folder(installed: Path, tmp_path: Path):
    rng = np.random.default_rng(0)
    for name, low in (("bright", 150), ("dark", 0)):
        (tmp_path / "images" / name).mkdir(parents=True)
        pixels = rng.integers(low, low + 100, (6, 6), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"images/{name}/0.png")
    mean = np.ones((36, 1)) / 36  # of squares: above 0.34 if bright, below 0.16 if dark
    save(tmp_path / "net.onnx", np.hstack([mean, -mean]), (-0.25, 0.25))

    command = ("certify", "--onnx", "net.onnx", "--images", "images", "--sigma", ".5", "--n", "100")
    command += ("--size", "6", "--channels", "1")
    said = run(installed / "bin/rrcm", *command, cwd=tmp_path)

    assert "2 images, n0 = 100, n = 100" in said
    assert len([*tmp_path.glob("results/*.csv")]) == 1


def test_the_wheel_has_its_own_commands_alone(installed: Path, elsewhere: Path):
    shutil.copytree(elsewhere / "pipeline", site(installed) / "pipeline")
    try:
        listed = run(installed / "bin/rrcm", "--help", cwd=elsewhere)
        refused = run(installed / "bin/rrcm", "repro", cwd=elsewhere, fails=True)
    finally:
        shutil.rmtree(site(installed) / "pipeline")

    assert "\n  certify " in listed and "\n  repro " not in listed
    assert refused == (
        "error: rrcm repro: no such command here; a checkout of rrcm has more: `make env`. "
        "Did you mean 'report'?\n"
    )


def test_an_editable_install_has_the_commands_of_its_checkout(source: Path, elsewhere: Path):
    """Wherever it is started, and whatever else is called pipeline there."""
    binaries, before = environment(elsewhere / "env"), {*source.rglob("*")}
    for distribution in (source, source / "pipeline"):
        pip(binaries / "python", "--editable", distribution, cwd=elsewhere)
    assert {*source.rglob("*")} == before

    listed = run(binaries / "rrcm", "--help", cwd=elsewhere)

    assert "\n  certify " in listed and "\n  repro " in listed
    assert "not found" in run(binaries / "rrcm", "check", cwd=elsewhere, fails=True)
