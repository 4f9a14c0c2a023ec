"""Builds the package with setuptools, and leaves nothing in the checkout.

setuptools writes build/ and rrcm.egg-info/ into the folder that it builds, and takes what it finds
there from an earlier build. So a wheel is built in a copy of its sources. An editable install
refers to the checkout itself; what setuptools wrote there is removed.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import chdir, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from setuptools import build_meta

SOURCES = ("rrcm", "pyproject.toml", "README.md", "LICENSE", ".ci/backend.py")
WRITTEN = ("build", "rrcm.egg-info")
Settings = dict[str, str | list[str] | None] | None

with suppress(OSError):  # Python kept this file's compiled form before its first line ran
    Path(__spec__.cached).unlink()
    Path(__spec__.cached).parent.rmdir()


def build_wheel(to: str, settings: Settings = None, metadata: str | None = None) -> str:
    """Write a wheel to the folder ``to``; return its name (PEP 517)."""
    to = os.path.abspath(to)
    with _copied():
        return build_meta.build_wheel(to, settings, metadata)


def build_sdist(to: str, settings: Settings = None) -> str:
    """Write an archive of the sources to the folder ``to``; return its name (PEP 517)."""
    to = os.path.abspath(to)
    with _copied():
        Path("MANIFEST.in").write_text("include .ci/backend.py\n")
        return build_meta.build_sdist(to, settings)


def build_editable(to: str, settings: Settings = None, metadata: str | None = None) -> str:
    """Write a wheel that refers to this folder to the folder ``to``; return its name (PEP 660)."""
    made = [name for name in WRITTEN if not os.path.exists(name)]
    try:
        return build_meta.build_editable(to, settings, metadata)
    finally:
        for name in made:
            shutil.rmtree(name, ignore_errors=True)


@contextmanager
def _copied() -> Iterator[None]:
    """Work in a copy of the sources."""
    with TemporaryDirectory() as folder:
        for name in SOURCES:
            target = Path(folder, name)
            target.parent.mkdir(exist_ok=True)
            if Path(name).is_dir():
                shutil.copytree(name, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(name, target)
        with chdir(folder):
            yield
