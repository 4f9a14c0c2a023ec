"""``rrcm doctor``: checks packages, devices, tools and the files of a project."""

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

from rrcm.core.errors import RrcmError

OK, ABSENT, WRONG = "ok", "--", "!!"
Finding = tuple[str, str]  # one of these marks, and the text


def examine() -> tuple[str, bool]:
    """Return one line per finding, with a summary of the failures, and whether there are none.

    A line begins with ``ok``; with ``--`` if something optional, or that can be made, is absent; or
    with ``!!`` if something needed is missing or wrong, followed by the way to get it.
    """
    found = _packages()
    if all(mark == OK for mark, _ in found):  # the next checks import these packages
        found += [*_devices(), *_project()]
    wrong = [text for mark, text in found if mark == WRONG]
    lines = [f"{mark}  {text}" for mark, text in found]
    if wrong:
        lines += ["", f"needed, and missing: {', '.join(map(_subject, wrong))}"]
    return "\n".join(lines), not wrong


def examine_noise() -> tuple[str, bool]:
    """Run statistical tests of every noise component on the device that would draw it.

    Returns a line per test, and whether all passed.
    """
    import torch

    from rrcm.certification import randomness
    from rrcm.core import registry

    device = "cuda" if torch.cuda.is_available() else "cpu"
    lines, good = [], True
    for name in registry.names("distributions"):
        component = registry.load("distributions", name)
        lines.append(f"{name} on {device}: {component.NAME}")
        for found in randomness.examine(component.noisy, on_grid=component.ON_GRID, device=device):
            verdict, good = OK if found.ok else WRONG, good and found.ok
            lines.append(f"{verdict}  {found.test:40} {found.statistic:12.5g}  p = {found.p:.2g}")
    return "\n".join(lines), good


def _subject(text: str) -> str:
    """Return the package, tool or key that a finding is about: its first word."""
    return text.split()[0].rstrip(":")


def _packages() -> list[Finding]:
    found = [(OK, f"python {platform.python_version()}")]
    for text in requires("rrcm") or []:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            have = version(requirement.name)
        except PackageNotFoundError:
            found.append((WRONG, f"{requirement.name}: not installed; `pip install '{text}'`"))
            continue
        fits = requirement.specifier.contains(have, prereleases=True)
        wanted = "" if fits else f", needs {requirement.specifier}; `pip install '{text}'`"
        found.append((OK if fits else WRONG, f"{requirement.name} {have}{wanted}"))
    return found


def _devices() -> list[Finding]:
    import onnxruntime
    import torch

    found = [(OK, f"{os.cpu_count()} CPU cores, torch uses {torch.get_num_threads()}")]
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        found.append((OK, f"CUDA {torch.version.cuda}: {', '.join(names)}"))
    else:
        build = "this torch is a CPU build" if torch.version.cuda is None else "no device answers"
        found.append((ABSENT, f"no GPU: {build}; everything runs on the CPU"))
    providers = ", ".join(onnxruntime.get_available_providers())
    return [*found, (OK, f"ONNX Runtime was built with {providers}")]


def _project() -> list[Finding]:
    from rrcm.cli import checked
    from rrcm.config import sections

    found = []
    for tool in ("git", "dvc"):
        place = shutil.which(tool)
        cure = "not on PATH; activate .venv, or install it"
        found.append((OK, f"{tool}: {place}") if place else (WRONG, f"{tool}: {cure}"))
    try:
        project = checked.load()
    except RrcmError as error:  # classifiers trained elsewhere need no params.yaml
        return [*found, (WRONG if sections.PARAMS.exists() else ABSENT, str(error))]
    found.append((OK, f"params.yaml: {len(project.runs)} runs, {len(project.evals)} evaluations"))
    raw = Path("data")
    cure = "" if raw.exists() else f": not here; `rrcm data {project.data.name.replace('_', '-')}`"
    found.append((OK if raw.exists() else ABSENT, f"raw data in {raw}/{cure}"))
    for run in project.classifiers():
        path = Path(f"onnx/{run}.onnx")
        cure = "" if path.exists() else f": not here; `dvc repro {project.maker(run)}`"
        found.append((OK if path.exists() else ABSENT, f"{path}{cure}"))
    return found
