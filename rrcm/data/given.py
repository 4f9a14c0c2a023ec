"""Turns images as people hold them into a split: tensors, arrays, pictures, files, data sets."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from rrcm.core.errors import DataError
from rrcm.core.labels import UNKNOWN, shifted
from rrcm.data.splits import pictures
from rrcm.data.splits.pictures import MAX_VALUE, Fit
from rrcm.data.splits.shards import Split

Picture = str | PathLike[str] | Image.Image | np.ndarray | Tensor
IMAGES, LABELS = ("pixel_values", "image", "img"), ("labels", "label")  # keys of Hugging Face
CHANNELS = (1, 3)
BATCH = 4  # axes of a batch of images
OVERSHOOT = 0.3  # how far bicubic resizing leaves [0, 1] at most


def collect(
    images: Picture | Iterable[Any],
    *,
    labels: Sequence[int] | np.ndarray | Tensor | None = None,
    classes: Sequence[str],
    fit: Fit | None,
) -> Split:
    """The images as a split, numbered from 0 in their order.

    One image, or several in a batch, a list, a data set or a loader. An image is a tensor
    [C, H, W], an array [H, W, C], [C, H, W] or [H, W], a PIL image or the path of a picture file;
    items of data sets may be pairs with a label, or mappings as those of Hugging Face. Numbers of
    floating point are pixels in [0, 1], those of uint8 are 0 to 255.

    Args:
        images: The images, all held in memory.
        labels: Their classes, -1 for unknown; by default those of the data set, if it has any,
            which they may not contradict.
        classes: Names of the classes.
        fit: The shape, and how pictures and files are brought to it. None: as they are, in the
            shape of the first.

    Raises:
        DataError: There are none, one cannot be read or is of another shape, pixels are not in
            [0, 1], or labels are not those of the classes.
    """
    if labels is not None and isinstance(images, DataLoader) and not _in_order(images):
        raise DataError(
            "labels: the loader gives images in an order of its own; take one without shuffle and "
            "samplers, or labels of its data set"
        )
    found: list[np.ndarray] = []
    marks: list[int] = []
    for item, label in _items(images):
        for one, mark in _singles(item, label, name=f"image {len(found)}"):
            name = f"image {len(found)}"
            array = _array(one, fit, name=name)
            fit = fit or Fit(shape=_shape(array, name=name))
            if array.shape != fit.shape:
                raise DataError(f"{name}: its shape is {array.shape}, not {fit.shape}")
            found.append(array)
            marks.append(mark)
    if not found:
        raise DataError("no images were given")
    white = MAX_VALUE if all(array.dtype == np.uint8 for array in found) else 1
    if white == 1:
        found = [_fractions(array) for array in found]
    wanted = known(marks if labels is None else labels, images=len(found), classes=classes)
    differ = (wanted != marks) & (np.array(marks) != UNKNOWN)
    if differ.any():
        place = int(differ.argmax())
        raise DataError(
            f"labels: image {place} is {wanted[place]} there and {marks[place]} in the data set; "
            "give one or the other, in the order of the images (a loader may shuffle them)"
        )
    return Split(
        idx=np.arange(len(found)),
        images=np.stack(found),
        labels=wanted,
        classes=tuple(classes),
        max_value=white,
    )


def _in_order(loader: DataLoader[Any]) -> bool:
    """Whether a loader gives its data set from the first item to the last, or as that iterates."""
    if isinstance(loader.dataset, IterableDataset):
        return True
    batches = loader.batch_sampler
    plain = batches is None or type(batches) is BatchSampler
    sampler = loader.sampler if batches is None else getattr(batches, "sampler", None)
    return plain and type(sampler) is SequentialSampler


def _items(images: Any) -> Iterator[tuple[Any, Any]]:
    """Images or batches of them, each with its label or labels, or None."""
    if isinstance(images, str | PathLike | Image.Image | np.ndarray | Tensor):
        yield images, None
        return
    if not isinstance(images, Iterable) and not hasattr(images, "__getitem__"):
        raise DataError(f"images: {type(images).__name__} is nothing that holds images")
    # A data set of PyTorch may have indices and a length alone, and no end of iteration.
    items = images if isinstance(images, Iterable) else map(images.__getitem__, range(len(images)))
    for item in items:
        if isinstance(item, Mapping):
            keys = [key for key in IMAGES if key in item]
            if not keys:
                raise DataError(
                    f"images: an item has {', '.join(item)}, but none of {', '.join(IMAGES)}"
                )
            yield item[keys[0]], next((item[key] for key in LABELS if key in item), None)
        elif isinstance(item, tuple | list) and len(item) in (1, 2):  # 1: no labels
            yield item[0], item[1] if item[1:] else None
        else:
            yield item, None


def _singles(item: Any, label: Any, *, name: str) -> Iterator[tuple[Any, int]]:
    """The images of an item, which may be a batch, with their labels."""
    batch = isinstance(item, np.ndarray | Tensor) and item.ndim == BATCH
    images = item if batch else [item]
    count = len(images)
    try:
        marks = [UNKNOWN] * count if label is None else np.asarray(label).reshape(-1).tolist()
    except (TypeError, ValueError):
        marks = []
    if len(marks) != count or not all(isinstance(mark, int) for mark in marks):
        raise DataError(f"{name}: {count} with the labels {label!r:.60}; a class is an integer")
    yield from zip(images, marks, strict=True)


def _array(image: Any, fit: Fit | None, *, name: str) -> np.ndarray:
    """An image as [C, H, W], uint8 or a floating point type."""
    if isinstance(image, str | PathLike):
        if os.path.isdir(image):
            raise DataError(
                f"{image}: a folder; give its files, such as sorted(Path({str(image)!r})"
                ".glob('*.png')), or use `rrcm certify --images`"
            )
        if fit is None:
            raise DataError(f"{image}: for files, give smooth(…) the network's shape=(C, H, W)")
        return pictures.read(Path(image), fit)
    if isinstance(image, Image.Image):
        channels = 1 if image.mode in ("1", "L", "I;16") else 3
        fit = fit or Fit(shape=(channels, image.height, image.width))
        return pictures.pixels(image, fit, name=name)
    if isinstance(image, Tensor):
        array = image.detach().cpu()
        return _checked((array.float() if array.is_floating_point() else array).numpy(), name=name)
    if isinstance(image, np.ndarray):
        return _checked(_channels_first(image, fit, name=name), name=name)
    raise DataError(f"{name}: {type(image).__name__} is no image")


def _shape(array: np.ndarray, *, name: str) -> tuple[int, int, int]:
    """The shape of the first image, which is that of all."""
    channels, height, width = array.shape
    if channels not in CHANNELS or not array.size:
        raise DataError(f"{name}: its shape is {array.shape}; images have 1 or 3 channels, first")
    return channels, height, width


def _channels_first(array: np.ndarray, fit: Fit | None, *, name: str) -> np.ndarray:
    """[C, H, W] of an array [H, W, C], [C, H, W] or [H, W]."""
    if array.ndim == 2:
        return array[None]
    if array.ndim != 3:
        return array
    first, last = array.shape[0] in CHANNELS, array.shape[-1] in CHANNELS
    if first and last and fit is not None:
        first, last = array.shape == fit.shape, array.shape != fit.shape
    if first and last:
        raise DataError(
            f"{name}: {array.shape} may be [C, H, W] or [H, W, C]; give a tensor, whose channels "
            "are first"
        )
    return np.moveaxis(array, -1, 0) if last else array


def _checked(array: np.ndarray, *, name: str) -> np.ndarray:
    """``array``, if it is an image [C, H, W] of uint8 or of fractions in [0, 1]."""
    if array.ndim != 3:
        raise DataError(f"{name}: its shape is {array.shape}; an image has three axes")
    if array.dtype == np.uint8 or array.size == 0:
        return array
    if not np.issubdtype(array.dtype, np.floating):
        raise DataError(
            f"{name}: numbers of type {array.dtype}; uint8, or floating point in [0, 1]"
        )
    low, high = float(array.min()), float(array.max())
    if not 0 <= low <= high <= 1:
        raise DataError(f"{name}: {_outside(low, high)}")
    return array


def _outside(least: float, most: float) -> str:
    """What is wrong with pixels from ``least`` to ``most``, and the way out."""
    if math.isnan(least):
        return "pixels are NaN"
    excess = max(-least, most - 1)
    said = f"values from {least:.6g} to {most:.6g}, by {excess:.2g} outside of [0, 1]"
    if excess <= OVERSHOOT:
        return f"{said}: clamp(0, 1) them, if rounding or bicubic resizing made these"
    if least >= 0 and 1 < most <= MAX_VALUE:
        return f"{said}: divide them by {MAX_VALUE}, if that is white"
    return (
        f"{said}: give them before normalisation, whose mean and std the network or rrcm.smooth "
        "applies after the noise"
    )


def _fractions(array: np.ndarray) -> np.ndarray:
    """Pixels in [0, 1], float32."""
    pixels = array.astype(np.float32)
    return pixels / np.float32(MAX_VALUE) if array.dtype == np.uint8 else pixels


def known(
    given: Sequence[int] | np.ndarray | Tensor, *, images: int, classes: Sequence[str]
) -> np.ndarray:
    """Labels as int64 [N], -1 for unknown.

    Raises:
        DataError: They are not one class of ``classes``, from 0, for each of ``images``.
    """
    labels = np.asarray(given)
    if labels.shape != (images,) or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            f"labels: {labels.dtype} {labels.shape}, not an integer for each of {images}"
        )
    if wrong := [k for k in labels.tolist() if not UNKNOWN <= k < len(classes)]:
        why = shifted(labels.tolist(), len(classes))
        raise DataError(
            f"labels: {wrong[0]} is none of the {len(classes)} classes, from 0{why and f'; {why}'}"
        )
    return labels.astype(np.int64)
