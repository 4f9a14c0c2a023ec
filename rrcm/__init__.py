"""Certified robustness of image classifiers by randomized smoothing, centred on rRCM.

``smooth`` makes a certifier of any classifier, ``report`` a page of its answers. ``losses`` are
those of the training methods; ``bounds``, ``certificates``, ``stopping`` and ``noise`` are what a
certificate is made of. Importing ``rrcm`` alone imports nothing heavy.
"""

import importlib
from typing import Any

from rrcm.inference import torchvision_stub

torchvision_stub.install()

FUNCTIONS = {"smooth": ("rrcm.certification.openers", "smooth")}
FUNCTIONS |= {"report": ("rrcm.analysis.page", "of_answers")}
MODULES = {
    "losses": "rrcm.training.functional",
    "bounds": "rrcm.certification.votes.bounds",
    "noise": "rrcm.noise",
}
FOLDERS = ("certificates", "stopping")  # kinds of components
__all__ = ["__version__", *FUNCTIONS, *MODULES, *FOLDERS]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name == "__version__":
        from importlib.metadata import version

        return version("rrcm")
    if name in FUNCTIONS:
        module, function = FUNCTIONS[name]
        return getattr(importlib.import_module(module), function)
    if name in MODULES:
        return importlib.import_module(MODULES[name])
    if name in FOLDERS:
        from rrcm.core import registry

        for component in registry.names(name):
            registry.load(name, component)
        return importlib.import_module(f"rrcm.certification.{name}")
    raise AttributeError(f"module 'rrcm' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted(__all__)
