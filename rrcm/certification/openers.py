"""Opens classifiers to smooth: PyTorch networks, ONNX files, timm networks, runs of a checkout."""

import warnings
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rrcm.certification.smoothed import Smoothed, SmoothedNetwork, device, opened
from rrcm.config.certification import Sampling
from rrcm.config.defaults import DRAWS
from rrcm.config.foreign import KINDS, WEIGHTS, Foreign
from rrcm.core import arguments, registry
from rrcm.core.errors import ConfigError
from rrcm.core.ranges import require
from rrcm.data.splits.pictures import Resize
from rrcm.inference import extras

File = str | PathLike[str]


@extras.named("rrcm.smooth")
@arguments.checked("classifier", "resize")
def smooth(
    classifier: nn.Module | torch.export.ExportedProgram | File | Sequence[File],
    *,
    sigma: float,
    classes: int | list[str] | list[int] | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    shape: tuple[int, int, int] | None = None,
    resize: Resize | None = None,
    upright: bool = True,
    weights: str | PathLike[str] | None = None,
    denoiser: File | None = None,
    normalise: str | None = None,
    output: str | None = None,
    batch: int | None = None,
    count_nan: bool = False,
) -> Smoothed | SmoothedNetwork:
    """Smooth a classifier with Gaussian noise of standard deviation ``sigma``, to `certify` images.

    The function that is certified is: noisy pixels in [0, 1] → (x - mean) / std → the classifier →
    the class of its highest score. Radii and sigma are in pixels of [0, 1].

    Args:
        classifier: A PyTorch network in evaluation mode, on its own device and in its precision, or
            one that `torch.export` exported; or the path of an ``.onnx`` file, the name of a run
            whose ``onnx/NAME.onnx`` is here, or the name of a timm network; or a checkpoint of
            another repository, as ``checkpoint.pth.tar``, of which a list is an ensemble; or
            ``FILE.py:FUNCTION``, which is executed and returns a PyTorch network.
        sigma: The noise level, in [0.0001, 10].
        classes: How many outputs there are, or their names; a PyTorch network needs one of them.
        mean: Mean of each channel, subtracted after the noise; by default 0, or that of timm or of
            a checkpoint.
        std: Standard deviation of each channel; by default 1, or as ``mean``.
        shape: [C, H, W], where the classifier leaves it open; a network takes that of its images.
        resize: How pictures and files of other sizes are brought to the shape: crop, squash, exact;
            by default as timm does for its network, and crop for others.
        upright: Whether pictures are turned by their EXIF data, which timm and torchvision do not.
        weights: A file of weights for a timm network; by default timm's own, which it downloads.
        denoiser: A checkpoint of a denoiser, in front of a checkpoint's normalisation.
        normalise: The data set that a checkpoint is normalised by: ``cifar10``, ``cifar100``,
            ``imagenet``, one of these with ``-mean`` (no std), or ``none``; by default as it shows.
        output: The name of the scores in an ONNX file that has several outputs.
        batch: A batch size for a network or an ONNX file that no other suits: 1, where a picture's
            scores depend on the rest of a batch.
        count_nan: Noise whose scores are NaN, or infinite, votes for no class, a last one that is
            never certified; by default it is an error.

    Raises:
        BackendError: There is no such classifier, it is damaged, or it cannot be certified.
        ConfigError: An argument is invalid, or the extra that reads ONNX files is not installed.
    """
    if isinstance(classes, int):
        classes = [*range(classes)]
    names = None if classes is None else [*map(str, classes)]
    require(
        names == classes or classes == [*range(len(classes or ()))],
        "classes: numbers are those of the outputs, 0, 1, …; other names are text, such as "
        "[str(k) for k in …]",
    )
    kind, source = _source(classifier)
    foreign = Foreign(
        kind=kind,
        source=source,
        sigma=sigma,
        classes=names,
        mean=mean,
        std=std,
        size=None if shape is None else shape[1:],
        channels=shape[0] if shape and "channels" in KINDS[kind] else None,
        resize=resize,
        upright=upright,
        weights=None if weights is None else Path(weights),
        denoiser=None if denoiser is None else Path(denoiser),
        normalise=normalise,
        output=output,
        batch=batch,
        count_nan=count_nan,
    )
    if isinstance(source, nn.Module):
        if names is None:
            raise ConfigError("classes: how many outputs has the network, or what are their names?")
        if shape is None:
            alone = upright and resize in (None, "exact")
            require(alone, "resize, upright: give the shape=(C, H, W) of the pictures, too")
            return SmoothedNetwork(foreign)
    if kind == "timm" and Path("onnx", f"{source}.onnx").exists():
        if foreign != Foreign(kind=kind, source=source, sigma=sigma):
            raise ConfigError(f"{source}: a run of this checkout needs sigma alone")
        return trained(source, sigma=sigma)
    smoothed = opened(foreign)
    if shape and smoothed.shape != tuple(shape):
        raise ConfigError(f"shape: the classifier takes {smoothed.shape}, not {tuple(shape)}")
    for line in smoothed.backend.notes:
        warnings.warn(line, stacklevel=3)
    return smoothed


def _source(classifier: Any) -> tuple[str, Any]:
    """The kind of a classifier, and its source, as of `Foreign`."""
    if isinstance(classifier, torch.export.ExportedProgram):
        classifier = classifier.module()
    if isinstance(classifier, nn.Module):
        return "module", classifier
    if classifier and isinstance(classifier, list | tuple):
        return "checkpoint", [*map(Path, classifier)]
    if not isinstance(classifier, str | PathLike):
        raise ConfigError(
            f"classifier: an nn.Module, an .onnx file or a name, got {type(classifier).__name__}; "
            "a function of your own can be the forward() of an nn.Module"
        )
    name = str(classifier)
    if ".py:" in name:
        return "module", name
    if name.endswith(".onnx"):
        return "onnx", name
    if name.endswith(WEIGHTS) or Path(name).is_file():
        return "checkpoint", [Path(name)]
    return "timm", name


def trained(
    run: str, *, sigma: float, root: str | PathLike[str] = ".", draws: Sampling = DRAWS
) -> Smoothed:
    """Smooth a run of this project, ``root/onnx/<run>.onnx``; picture files must have its size.

    Raises:
        BackendError: The file is missing or damaged.
    """
    backend = registry.load("backends", "onnx").Backend(
        Path(root), run, sigma=sigma, precision="fp32", device=device(), calibration=None
    )
    _, *shape = backend.session.get_inputs()[0].shape
    return Smoothed(backend, shape=tuple(shape), draws=draws, trained=Path(root, "models", run))
