"""Lets timm import torchvision beside a CPU build of torch.

timm imports torchvision, and torchvision refuses to import where its compiled operators do not
match the installed torch ("operator torchvision::nms does not exist"): the registry's torchvision
is built for CUDA, a CPU-only machine has another torch. We use none of these operators, so where
they are absent it is enough to declare the two that torchvision asks for by name.
"""

import importlib.metadata
import importlib.util

import torch


def declare_missing() -> None:
    """Declare torchvision's ``nms`` and ``qnms`` if no compiled operators will provide them."""
    if importlib.util.find_spec("torchvision") is None or torch.version.cuda is not None:
        return
    if "+cpu" in importlib.metadata.version("torchvision") or hasattr(torch.ops.torchvision, "nms"):
        return
    for operator in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{operator}",
            "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        )


declare_missing()
