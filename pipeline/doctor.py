"""``rrcm doctor``: what is installed, which devices there are, and what is missing."""

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import onnxruntime
import torch
from packaging.requirements import Requirement

from rrcm import params, randomness, registry
from rrcm.errors import RrcmError


def examine() -> str:
    """One line per finding: ``ok`` or ``--``, what, and for what is missing how to get it."""
    findings = [*_packages(), *_devices(), *_project()]
    return "\n".join(f"{'ok' if ok else '--'}  {text}" for ok, text in findings)


def examine_noise() -> str:
    """Statistical tests of the noise of every component, on the device that would draw it."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lines = []
    for name in registry.names("noises"):
        component = registry.load("noises", name)
        lines.append(f"{name} on {device}: {component.NAME}")
        for found in randomness.examine(component.noisy, on_grid=component.ON_GRID, device=device):
            verdict = "ok" if found.ok else "--"
            lines.append(f"{verdict}  {found.test:40} {found.statistic:12.5g}  p = {found.p:.2g}")
    return "\n".join(lines)


def _packages() -> list[tuple[bool, str]]:
    found = [(True, f"python {platform.python_version()}")]
    for text in requires("rrcm") or []:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            have = version(requirement.name)
        except PackageNotFoundError:
            found.append((False, f"{requirement.name}: not installed; `pip install '{text}'`"))
            continue
        fits = requirement.specifier.contains(have, prereleases=True)
        wanted = "" if fits else f", needs {requirement.specifier}; `pip install '{text}'`"
        found.append((fits, f"{requirement.name} {have}{wanted}"))
    return found


def _devices() -> list[tuple[bool, str]]:
    found = [(True, f"{os.cpu_count()} CPU cores, torch uses {torch.get_num_threads()}")]
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        found.append((True, f"CUDA {torch.version.cuda}: {', '.join(names)}"))
    else:
        build = "this torch is a CPU build" if torch.version.cuda is None else "no device answers"
        found.append((False, f"no GPU: {build}; everything runs on the CPU"))
    providers = ", ".join(onnxruntime.get_available_providers())
    return [*found, (True, f"ONNX Runtime was built with {providers}")]


def _project() -> list[tuple[bool, str]]:
    found = []
    for tool in ("git", "dvc"):
        place = shutil.which(tool)
        found.append((bool(place), f"{tool}: {place or 'not on PATH; activate .venv'}"))
    try:
        project = params.load()
    except RrcmError as error:
        return [*found, (False, str(error))]
    found.append((True, f"params.yaml: {len(project.runs)} runs, {len(project.evals)} evaluations"))
    raw = Path("data")
    cure = "" if raw.exists() else f": not here; `rrcm data {project.data.name}`"
    found.append((raw.exists(), f"raw data in {raw}/{cure}"))
    for run in project.classifiers():
        path = Path(f"onnx/{run}.onnx")
        cure = "" if path.exists() else f": not here; `dvc repro {project.maker(run)}`"
        found.append((path.exists(), f"{path}{cure}"))
    return found
