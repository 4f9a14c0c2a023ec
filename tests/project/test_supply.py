"""What is installed is what was tested: every file of the locks by its digest, nothing unlocked."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from runpy import run_path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from workspace import ROOT

LOCKS = ("requirements.lock", "requirements-gpu.lock")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
HASH = re.compile(r"sha256:[0-9a-f]{64}")
CUDA = ("nvidia-", "cuda-", "triton")


def locked(name: str) -> dict[str, tuple[str, list[str]]]:
    """Package -> version and digests; fails on a line that is neither."""
    text = (ROOT / name).read_text().replace("\\\n", " ")
    found = {}
    for line in filter(None, (line.partition("#")[0].strip() for line in text.splitlines())):
        pin, *hashes = line.split(" --hash=")
        package, _, version = re.sub(r"\[.*\]", "", pin).strip().partition("==")
        assert canonicalize_name(package) == package and version, line
        assert package not in found, line
        found[package] = (version, [one.strip() for one in hashes])
    return found


def wanted(requirements: list[str]) -> list[Requirement]:
    """With those of the extras of this project that they name."""
    found = []
    for one in map(Requirement, requirements):
        if one.name == PROJECT["project"]["name"]:
            found += wanted([each for extra in one.extras for each in EXTRAS[extra]])
        else:
            found.append(one)
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_everything_locked_is_one_version_of_known_bytes(name: str):
    for package, (_, hashes) in locked(name).items():
        assert hashes and all(map(HASH.fullmatch, hashes)), package
    text = (ROOT / name).read_text()
    assert not re.search(r"://|^-|\s/|--(index|find|extra)", text, re.MULTILINE)  # no place


@pytest.mark.parametrize("name", LOCKS)
def test_the_locks_are_of_what_the_project_asks_for(name: str):
    pins = locked(name)
    asked = PROJECT["project"]["dependencies"] + EXTRAS["dev"] + PROJECT["build-system"]["requires"]

    for one in wanted(asked):
        version, _ = pins[canonicalize_name(one.name)]
        assert one.specifier.contains(version, prereleases=True), (one, version)


def test_what_builds_the_project_is_pinned():
    for one in map(Requirement, PROJECT["build-system"]["requires"]):
        assert [each.operator for each in one.specifier] == ["=="], one


def test_the_locks_differ_in_cuda_alone():
    plain, cuda = ({name: pin[0] for name, pin in locked(lock).items()} for lock in LOCKS)

    assert plain.pop("torch") == cuda.pop("torch") + "+cpu"
    assert plain.pop("torchvision").removesuffix("+cpu") == cuda.pop("torchvision")
    assert not any(name.startswith(CUDA) for name in plain)
    more = {name: version for name, version in cuda.items() if name not in plain}
    assert plain | more == cuda and all(name.startswith(CUDA) for name in more)


def test_torchvision_is_of_torch_s_build_wherever_pip_is_offered_it():
    """pip takes what the lock has a hash of; `make lock` keeps that where it cannot see it."""
    _, registry = locked(LOCKS[1])["torchvision"]
    version, both = locked(LOCKS[0])["torchvision"]
    assert {*both} > {*registry} and "+" not in version
    pin = "torchvision=={} \\\n    --hash={}\nxdg==1 \\\n    --hash=c\n".format
    merged = run_path(str(ROOT / ".ci/lock.py"))["merged"](
        pin("1+cpu", "b"), pin("1", "a"), pin("0", "d")
    )
    assert merged == pin("1", "a \\\n    --hash=b")


NEED_TORCHVISION = {
    "torchvision": "import torchvision",
    "timm": "import timm",
    "diffusers": "from diffusers import UNet2DModel",
    "torchattacks": "import torchattacks",
    "transformers": "from transformers import ViTForImageClassification",
}


@pytest.mark.parametrize("package", NEED_TORCHVISION)
def test_a_fresh_process_imports_what_needs_torchvision(package: str, tmp_path: Path):
    """Of this environment, without rrcm; until somebody does, no Python loads torch for it."""
    if importlib.util.find_spec(package) is None:
        pytest.skip("not installed")
    fresh(
        "import sys, importlib.util",
        "assert importlib.util.find_spec('torchvision') and 'torch' not in sys.modules",
        NEED_TORCHVISION[package],
        "assert 'rrcm' not in sys.modules",
        cwd=tmp_path,
    )


def test_where_make_installed_nothing_rrcm_is_enough(tmp_path: Path):
    ours = "sys.meta_path[:] = [f for f in sys.meta_path if f.__module__ != '_torchvision_stub']"
    fresh(
        "import sys",
        ours,
        "import rrcm",
        "assert 'torch' not in sys.modules",
        "import timm",
        cwd=tmp_path,
    )


def fresh(*lines: str, cwd: Path) -> None:
    """Run a program in an environment without this checkout's folder on its path."""
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=cwd, env=clean, check=True)


CLEAN = {"name": "a", "version": "1", "vulns": []}
FLAWED = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
UNKNOWN = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    "said, code, line",
    [
        ([CLEAN], 0, "audit: 1 packages, no known vulnerability\n"),
        ([CLEAN, FLAWED], 1, "audit: b 2: CVE-1, mended in 3\n"),
        ([CLEAN, UNKNOWN], 2, "audit: 1 of 2 packages were not checked (c): the database does"),
        (None, 2, "audit: nothing was checked; the database was out of reach (no route)\n"),
    ],
)
def test_an_audit_that_saw_nothing_is_no_success(
    monkeypatch, capsys, said: list | None, code: int, line: str
):
    out = "" if said is None else json.dumps({"dependencies": said})
    done = subprocess.CompletedProcess([], 1, out, "Traceback\nno route\n")
    monkeypatch.setattr(subprocess, "run", lambda *command, **options: done)

    assert run_path(str(ROOT / ".ci/audit.py"))["main"]() == code
    assert capsys.readouterr().out.startswith(line)
