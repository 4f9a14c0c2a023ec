"""A classifier behind a denoiser, as one function of noisy pixels."""

import copy
import sys
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from rrcm.core import registry
from rrcm.core.errors import BackendError

Denoiser = nn.Module | str | PathLike[str]  # in memory, or an ONNX file


class Denoised:
    """Noisy pixels to the denoiser, its pixels to the classifier, which normalises them.

    Denoised smoothing (Salman et al., 2020, arXiv:2003.01908). ``weights`` is the SHA-256 of both,
    and all else is as in a backend for a classifier alone.
    """

    normals = ()  # it is deterministic

    def __init__(self, denoiser: Any, classifier: Any) -> None:
        """Put a ``Denoiser`` of this package in front of a ``Backend`` of the same shape.

        Raises:
            BackendError: They take batches of different sizes.
        """
        batches = {denoiser.fixed, classifier.fixed} - {0}
        if len(batches) > 1:
            raise BackendError(
                f"the denoiser takes batches of {denoiser.fixed}, the classifier of "
                f"{classifier.fixed}; export one of them with any batch size"
            )
        self.denoiser, self.classifier = denoiser, classifier
        self.fixed = max(batches, default=0)
        self.most = min(getattr(one, "most", sys.maxsize) for one in (denoiser, classifier))
        self.sigma, self.shape, self.classes = (
            classifier.sigma,
            classifier.shape,
            classifier.classes,
        )
        self.device, self.normalise = classifier.device, classifier.normalise
        self.weights = sha256(f"{denoiser.weights} {classifier.weights}".encode()).hexdigest()
        self.provider, self.precision = (
            "+".join(dict.fromkeys(getattr(one, of) for one in (denoiser, classifier)))
            for of in ("provider", "precision")
        )

    def on(self, device: str) -> "Denoised":
        """The same function on another device, with copies of both networks.

        Raises:
            BackendError: There is no such device, or one of them is an ONNX file.
        """
        moved = copy.copy(self)
        for part in ("denoiser", "classifier"):
            network = getattr(self, part)
            if not hasattr(network, "on"):
                raise BackendError(f"device {device}: the {part} is a file; only networks move")
            setattr(moved, part, network.on(device))
        moved.device = moved.classifier.device
        return moved

    def scores(self, x: Tensor) -> Tensor:
        """Scores [B, K] of noisy pixels ``x`` [B, C, H, W], both float32 on ``device``."""
        return self.classifier.scores(self.denoiser.scores(x))


def behind(denoiser: Denoiser, classifier: Any) -> Denoised:
    """Put a denoiser in front of a backend of this package, on its device.

    Raises:
        BackendError: It is missing, damaged, in training mode, or its pictures have another shape.
    """
    sigma, shape, device = classifier.sigma, classifier.shape, classifier.device
    if isinstance(denoiser, nn.Module):
        network = registry.load("foreign", "module").Denoiser(denoiser, sigma=sigma, shape=shape)
        return Denoised(
            network if network.device == device else network.on(str(device)), classifier
        )
    file = registry.load("foreign", "onnx").Denoiser(
        Path(denoiser), sigma=sigma, channels=shape[0], size=shape[1:], device=device.type
    )
    return Denoised(file, classifier)
