"""Components are found by file name: ``load("methods", "gaussian")`` is rrcm/methods/gaussian.py.

Nothing is registered anywhere, so adding a component touches no file that a trained model depends
on.
"""

import difflib
import importlib
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from rrcm.errors import ConfigError

LONGEST = 100  # characters of a name


@dataclass(frozen=True, slots=True)
class Of:
    """A mark of a string in a dataclass: it names a component of ``rrcm/<folder>/``."""

    folder: str


def suggest(word: str, known: list[str]) -> str:
    """`` Did you mean 'x'?`` when something known is close to ``word``, else nothing."""
    if len(word) > LONGEST:  # comparing takes the product of both lengths
        return ""
    close = difflib.get_close_matches(word, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def names(folder: str) -> list[str]:
    """The components of one folder of ``rrcm/``, sorted."""
    path = Path(__file__).parent / folder
    return sorted(m.name for m in pkgutil.iter_modules([str(path)]) if not m.name.startswith("_"))


def require(folder: str, name: str) -> None:
    """Refuse a name that no component of the folder has; lists what there is."""
    file = Path(__file__).parent / folder / f"{name}.py"
    if not (name.isidentifier() and name[0] != "_" and len(name) < LONGEST and file.is_file()):
        known = names(folder)
        hint, short = suggest(name, known), name[:LONGEST]
        raise ConfigError(f"rrcm/{folder}/ has no {short!r}, only {', '.join(known)}.{hint}")


def load(folder: str, name: str) -> ModuleType:
    """The module ``rrcm.<folder>.<name>``; an unknown name lists what there is."""
    require(folder, name)
    return importlib.import_module(f"rrcm.{folder}.{name}")
