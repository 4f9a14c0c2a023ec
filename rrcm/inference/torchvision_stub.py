"""Lets torchvision be imported beside another build of torch than its own.

The registry's torchvision is built for CUDA. Its compiled operators do not load beside a CPU build
of torch, and its import ends in "operator torchvision::nms does not exist". timm and diffusers
import torchvision, and use none of these operators; then it is enough to declare the two that it
asks for by name. A call of an operator still fails, with torchvision's own message.

``rrcm`` installs this when it is imported. Where `make env` gets no matching build, each Python of
the environment does so, from a copy of this file: hence it imports little, and nothing of ours.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

NAME = "torchvision"
LACKING = "torchvision::nms does not exist"


class Finder:
    """Finds torchvision as Python does; its loader declares what is lacking."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the module's specification if ``name`` is torchvision and it is installed."""
        spec = PathFinder.find_spec(name) if name == NAME else None
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def once_more(module: ModuleType) -> None:
            try:
                execute(module)
            except RuntimeError as error:
                if LACKING not in str(error):
                    raise
                declare()
                execute(module)

        vars(spec.loader)["exec_module"] = once_more
        return spec


def declare() -> None:
    """Declare torchvision's ``nms`` and ``qnms``, without saying how they are computed."""
    import torch

    for operator in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{operator}",
            "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        )


def install() -> None:
    """Change what happens when somebody imports torchvision; import nothing now."""
    sys.meta_path.insert(0, Finder)
