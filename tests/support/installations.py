"""Environments that have some of the packages of this one, as links to them."""

import subprocess
import sys
import tomllib
import venv
from collections import defaultdict
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from workspace import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def closure(requirements: list[str]) -> set[str]:
    """The names of all distributions that come with ``requirements``."""
    found, left = set(), [*map(Requirement, requirements)]
    while left:
        one = left.pop()
        key = (canonicalize_name(one.name), tuple(sorted(one.extras)))
        if key not in found:
            found.add(key)
            needed = map(Requirement, distribution(one.name).requires or [])
            extras = one.extras or {""}
            left += [
                each
                for each in needed
                if not each.marker or any(each.marker.evaluate({"extra": e}) for e in extras)
            ]
    return {name for name, _ in found}


def install(folder: Path, *extras: str, checkout: bool = False) -> Path:
    """An environment in ``folder`` with rrcm, its dependencies and those of ``extras``; its bin/.

    With ``checkout``, it also has the commands of this checkout.

    Everything else is not there at all, neither to be imported nor as metadata.
    """
    wanted = closure(PROJECT["dependencies"] + [one for extra in extras for one in EXTRAS[extra]])
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    owners = defaultdict(set)  # top level entry: the distributions with files in it
    every = {canonicalize_name(one.name): one for one in distributions()}
    for name, one in every.items():
        for entry in _entries(one):
            owners[entry].add(name)
    for name in wanted:
        for entry in _entries(every[name]):
            _link(site, every[name], entry, shared=not owners[entry] <= wanted)
    command = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "install"]
    more = ["--editable", ROOT / "pipeline"] if checkout else []
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, *options, ROOT, *more], check=True, timeout=300)
    return folder / "bin"


def _entries(one: Distribution) -> set[str]:
    paths = [file for file in one.files or () if file.parts[0] not in ("..", "__pycache__")]
    return {file.parts[0] for file in paths}


def _link(site: Path, one: Distribution, entry: str, *, shared: bool) -> None:
    """Link a file or folder; of a folder that others have files in, too, those of ``one``."""
    if not shared:
        if not (site / entry).exists():
            (site / entry).symlink_to(one.locate_file(entry))
        return
    for file in one.files or ():
        if file.parts[0] == entry:
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).symlink_to(one.locate_file(file))
