"""Certified robustness of image classifiers by randomized smoothing, centred on rRCM.

``rrcm.smoothed`` certifies an ONNX file, a timm network or a run of a checkout.
Importing ``rrcm`` alone imports nothing heavy.
"""

from typing import Any

__all__ = ["__version__", "smoothed"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name == "__version__":
        from importlib.metadata import version

        return version("rrcm")
    if name == "smoothed":
        from rrcm.certification import smoothed

        return smoothed
    raise AttributeError(f"module 'rrcm' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
