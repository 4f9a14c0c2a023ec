"""Components are found by file name: ``load("methods", "gaussian")`` is rrcm/methods/gaussian.py.

Nothing is registered anywhere, so adding a component touches no file that a trained model depends
on.
"""

import difflib
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

from rrcm.errors import ConfigError


def suggest(word: str, known: list[str]) -> str:
    """`` Did you mean 'x'?`` when something known is close to ``word``, else nothing."""
    close = difflib.get_close_matches(word, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def names(folder: str) -> list[str]:
    """The components of one folder of ``rrcm/``, sorted."""
    path = Path(__file__).parent / folder
    return sorted(m.name for m in pkgutil.iter_modules([str(path)]) if not m.name.startswith("_"))


def load(folder: str, name: str) -> ModuleType:
    """The module ``rrcm.<folder>.<name>``; an unknown name lists what there is."""
    known = names(folder)
    if name not in known:
        raise ConfigError(
            f"rrcm/{folder}/ has no {name!r}, only {', '.join(known)}.{suggest(name, known)}"
        )
    return importlib.import_module(f"rrcm.{folder}.{name}")
