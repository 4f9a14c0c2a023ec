"""Reads picture files as people have them: also HEIC and AVIF, and as they are where they fit."""

import importlib
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, ImageOps

from rrcm.core.errors import DataError, one_line
from rrcm.core.files import require_file
from rrcm.data.splits import pictures
from rrcm.data.splits.pictures import Fit

with suppress(ImportError):  # Pillow's plug-in for HEIC, which is no dependency of ours
    importlib.import_module("pillow_heif").register_heif_opener()
CAMERAS = {".heic": "HEIF", ".heif": "HEIF", ".avif": "AVIF"}  # suffix -> Pillow's name of it
PLUGINS = {"HEIF": "pillow-heif", "AVIF": "--upgrade pillow"}
SUFFIXES = pictures.SUFFIXES | {*CAMERAS}


class FitOthers(Fit):
    """A `Fit` of pictures of other sizes: one that has the size already is left as it is."""

    __slots__ = ()

    def __str__(self) -> str:
        """The rule in words."""
        alone = ", those of this size as they are" if self.resize == "crop" else ""
        return Fit.__str__(self) + alone


def read(source: Path | IO[bytes], fit: Fit, *, name: str | None = None) -> np.ndarray:
    """As `pictures.read`, but paths may also be of HEIC and AVIF files, where Pillow reads them.

    Raises:
        DataError: As `pictures.read`, or what reads such a file is not installed.
    """
    name = str(source) if name is None else name
    kind = CAMERAS.get(source.suffix.lower()) if isinstance(source, Path) else None
    if kind is None:
        return pixels(pictures.decode(source, fit.shape[0], name=name), fit, name=name)
    assert isinstance(source, Path)
    require_file(source)
    if kind not in Image.OPEN:
        raise DataError(
            f"{name}: {kind} is not read by the Pillow that is installed: `pip install "
            f"{PLUGINS[kind]}`, or turn it into a PNG file"
        )
    try:
        with Image.open(source, formats=(kind,)) as picture:
            return pixels(picture, fit, name=name)
    except pictures.BROKEN as error:
        raise DataError(f"{name}: a damaged picture ({one_line(error)})") from None


def pixels(picture: Image.Image, fit: Fit, *, name: str) -> np.ndarray:
    """As `pictures.pixels`, but a picture of the size of a `FitOthers` is not scaled."""
    picture = ImageOps.exif_transpose(picture)
    _, height, width = fit.shape
    if isinstance(fit, FitOthers) and picture.size == (width, height):
        fit = Fit(shape=fit.shape)
    return pictures.pixels(picture, fit, name=name)
