"""Finds components by file name: ``load("methods", "gaussian")`` imports the file gaussian.py.

Only the folder of each kind is listed here. Components themselves are not registered, so that
adding one changes no file that a trained model depends on.
"""

import difflib
import importlib
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from rrcm.core.errors import ConfigError

LONGEST = 100  # characters of a name
FOLDERS = {  # kind of component: its folder below rrcm/
    "datasets": "data/datasets",
    "networks": "models/networks",
    "folding": "models/folding",
    "objectives": "training/objectives",
    "methods": "training/methods",
    "denoiser_networks": "diffusion/networks",
    "denoiser_objectives": "diffusion/objectives",
    "purifiers": "diffusion/purifiers",
    "backends": "inference/backends",
    "foreign": "inference/foreign",
    "distributions": "certification/distributions",
    "stopping": "certification/stopping",
    "certificates": "certification/certificates",
}
LIBRARY = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Of:
    """Annotation of a string in a dataclass: the name of a component of this kind."""

    kind: str


def suggest(word: str, known: list[str]) -> str:
    """`` Did you mean 'x'?`` if a known word is close to ``word``, else the empty string."""
    if len(word) > LONGEST:  # comparing takes time in proportion to both lengths
        return ""
    close = difflib.get_close_matches(word, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def names(kind: str) -> list[str]:
    """Names of the components of one kind, sorted."""
    files = pkgutil.iter_modules([str(LIBRARY / FOLDERS[kind])])
    return sorted(file.name for file in files if not file.name.startswith("_"))


def require(kind: str, name: str) -> None:
    """Refuse a name that is no component of this kind; the error lists the existing ones."""
    known = names(kind)
    if name not in known:
        hint, short = suggest(name, known), name[:LONGEST]
        raise ConfigError(f"rrcm/{FOLDERS[kind]}/ has no {short!r}, only {', '.join(known)}.{hint}")


def load(kind: str, name: str) -> ModuleType:
    """The module of a component.

    Raises:
        ConfigError: There is no such component; the error lists the existing ones.
    """
    require(kind, name)
    return importlib.import_module(f"rrcm.{FOLDERS[kind].replace('/', '.')}.{name}")
