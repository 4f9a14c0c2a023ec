"""``rrcm doctor``: checks packages, devices, tools and the files of a project."""

import importlib
import os
import platform
import warnings
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from rrcm.cli.project import ABSENT, OK, WRONG, Finding, Project
from rrcm.core.errors import one_line
from rrcm.inference import extras

RUNTIMES = ("onnxruntime", "onnxruntime-gpu")
MODULES = {"pillow": "PIL", "scikit-learn": "sklearn"}  # others are imported by their own name
SHOWN = ("train", "diffusion", "serve", "flow")  # extras that add commands or parts of them


def examine(project: Project) -> tuple[str, bool]:
    """Return one line per finding, with a summary of the failures, and whether there are none.

    A line begins with ``ok``; with ``--`` if something optional, or that can be made, is absent; or
    with ``!!`` if something needed is missing or wrong, followed by the way to get it.
    """
    findings = _packages()
    if all(mark != WRONG for mark, _ in findings):  # the next checks import these packages
        findings += [*_devices(), *project.findings()]
    wrong = [text for mark, text in findings if mark == WRONG]
    lines = [f"{mark}  {text}" for mark, text in findings]
    if wrong:
        subjects = [text.split()[0].rstrip(":") for text in wrong]
        lines += ["", f"needed, and missing: {', '.join(subjects)}"]
    return "\n".join(lines), not wrong


def _packages() -> list[Finding]:
    """Return the packages that every command needs, and the extras with what they lack."""
    declared = [Requirement(line) for line in requires("rrcm") or []]
    always = [one for one in declared if one.marker is None or one.marker.evaluate({"extra": ""})]
    findings = [(OK, f"python {platform.python_version()}"), *map(_package, always)]
    for extra in SHOWN:
        wanted = [one for one in declared if one.marker and one.marker.evaluate({"extra": extra})]
        findings += _extra(extra, wanted)
    return findings


def _package(requirement: Requirement) -> Finding:
    wanted = f"{requirement.name}{requirement.specifier}"
    if (have := _version(requirement.name)) is None:
        return WRONG, f"{requirement.name}: not installed; `pip install '{wanted}'`"
    if not requirement.specifier.contains(have, prereleases=True):
        needs = f"needs {requirement.specifier}; `pip install '{wanted}'`"
        return WRONG, f"{requirement.name} {have}, {needs}"
    return _import(requirement.name, have)


def _import(name: str, have: str) -> Finding:
    """Import a package as the commands do: one that is there may still be broken."""
    try:
        with warnings.catch_warnings(action="ignore"):
            importlib.import_module(MODULES.get(name, name.replace("-", "_")))
    except Exception as error:  # whatever a broken package raises
        cure = f"`pip install --force-reinstall '{name}=={have}'`"
        return WRONG, f"{name} {have}: cannot be imported ({one_line(error)}); {cure}"
    if name == "torchvision" and not _has_operators():
        return ABSENT, (
            f"{name} {have}: its operators are built for another torch, without which it cannot be "
            "imported; rrcm can do without them"
        )
    return OK, f"{name} {have}"


def _has_operators() -> bool:
    import torch

    return hasattr(torch.ops.torchvision, "roi_align")


def _extra(extra: str, wanted: list[Requirement]) -> list[Finding]:
    """Return whether an extra is installed; if so, its packages of a version that does not fit."""
    if absent := [each.name for each in wanted if _version(each.name) is None]:
        cure = f"""{", ".join(absent)} not installed; `pip install "rrcm[{extra}]"`"""
        return [(ABSENT, f"extra {extra}: {cure}")]
    wrong = [each for each in map(_package, wanted) if each[0] == WRONG]
    return wrong or [(OK, f"extra {extra}")]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _devices() -> list[Finding]:
    import torch

    findings = [(OK, f"{os.cpu_count()} CPU cores, torch uses {torch.get_num_threads()}")]
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        findings.append((OK, f"CUDA {torch.version.cuda}: {', '.join(names)}"))
    else:
        build = "this torch is a CPU build" if torch.version.cuda is None else "no device answers"
        findings.append((ABSENT, f"no GPU: {build}; everything runs on the CPU"))
    return [*findings, _runtime()]


def _runtime() -> Finding:
    """Return which ONNX Runtime is installed; two of them overwrite each other's files."""
    have = [name for name in RUNTIMES if _version(name)]
    if len(have) > 1:
        both = " ".join(have)
        cure = f'`pip uninstall {both}`, then `pip install "rrcm[cpu]"` or "rrcm[gpu]"'
        return WRONG, f"{have[0]}: {have[1]} is installed, too, and has the same files; {cure}"
    if not have:
        return ABSENT, f"ONNX Runtime: {extras.needed('onnxruntime')}"
    import onnxruntime

    providers = ", ".join(onnxruntime.get_available_providers())
    return OK, f"ONNX Runtime was built with {providers}"
