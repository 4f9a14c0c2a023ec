"""Picture files to pixels: every mode and orientation becomes uint8 [C, H, W] of one shape.

What happens in here comes before the noise, and is no part of the certified function: a certificate
speaks of the pixels that leave this module, not of those in the file.
"""

import struct
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np
import pandas as pd
from PIL import Image, ImageOps, UnidentifiedImageError

from rrcm.errors import ConfigError, DataError
from rrcm.registry import suggest
from rrcm.shards import Split
from rrcm.votes import UNKNOWN

WHITE = 255  # the pixel value that becomes 1.0
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # no format runs a program
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
MODES = {1: "L", 3: "RGB"}
MOST = Image.MAX_IMAGE_PIXELS or 0  # a picture of more is taken for a decompression bomb
BROKEN = (  # what PIL raises on files that are no pictures, or damaged ones
    *(OSError, SyntaxError, ValueError, TypeError, IndexError, KeyError, EOFError, OverflowError),
    *(NotImplementedError, ZeroDivisionError, MemoryError, struct.error, zlib.error),
    *(Image.DecompressionBombError, Image.DecompressionBombWarning),
)
Image.init()  # loads what reads the later of FORMATS
warnings.filterwarnings("error", category=Image.DecompressionBombWarning)  # refused, not mentioned


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """How a picture is brought to ``shape`` [C, H, W], of one channel (grey) or three (RGB).

    ``resize`` names the rule. ``exact``: a picture of another size is refused. ``crop``: it is
    scaled until it just covers the size divided by ``ratio`` (timm's ``crop_pct``), and its centre
    is cut out. ``squash``: it is scaled to the size, whatever its proportions. Scaling is
    antialiased, ``bicubic`` or ``bilinear``.
    """

    shape: tuple[int, int, int]
    resize: Literal["exact", "crop", "squash"] = "exact"
    ratio: float = 0.875
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"

    def __post_init__(self) -> None:
        if self.shape[0] not in MODES:
            raise DataError(f"pictures have 1 or 3 channels, but the model takes {self.shape[0]}")
        for value, known in (
            (self.resize, ("exact", "crop", "squash")),
            (self.interpolation, FILTERS),
        ):
            if value not in known:
                raise ConfigError(
                    f"resize: {value!r} is none of {', '.join(known)}.{suggest(value, [*known])}"
                )
        if not 0 < self.ratio <= 1:
            raise ConfigError(f"resize: the ratio of a crop is in (0, 1], got {self.ratio:g}")

    def __str__(self) -> str:
        """The rule in words."""
        _, height, width = self.shape
        size, scaled = f"{width} x {height}", f"scaled ({self.interpolation})"
        return {
            "exact": f"pictures of {size} pixels, as they are",
            "crop": f"{scaled} to cover {size} / {self.ratio:g}, then its centre cut out",
            "squash": f"{scaled} to {size}, proportions not kept",
        }[self.resize]


@dataclass(frozen=True, kw_only=True, slots=True)
class Folder:
    """A folder of pictures as a split.

    ``files`` [N] are the paths of the split's images below the folder, ``left_out`` says in a line
    each of which files were not used, and why. ``idx`` of an image is the place of its file among
    all picture files of the folder, in the order of their paths, so that a file that cannot be read
    renumbers no other.
    """

    split: Split
    files: list[str]
    left_out: list[str]


def read(source: Path | IO[bytes], fit: Fit, *, name: str | None = None) -> np.ndarray:
    """The first frame of a picture file as pixels, uint8 of ``fit.shape``.

    Turned upright as its EXIF data say. Sixteen bits are scaled to eight, transparent pixels shown
    on white, palettes and CMYK converted to RGB, colours to grey by luma where one channel is asked
    for.

    Args:
        source: A path, or an open file.
        fit: The shape, and how to get there.
        name: What to call it in an error; the path.

    Raises:
        DataError: The file is missing, no picture, damaged or too large, or its size is refused.
    """
    name = str(source) if name is None else name
    try:
        with Image.open(source, formats=FORMATS) as picture:
            return pixels(picture, fit, name=name)
    except FileNotFoundError:
        raise DataError(f"{name}: not found") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DataError(f"{name}: more than {MOST:,} pixels, which may be a trap") from None
    except UnidentifiedImageError:
        raise DataError(f"{name}: not a picture, or of a kind that is not read") from None
    except BROKEN as error:
        raise DataError(f"{name}: a damaged picture ({' '.join(str(error).split())})") from None


def pixels(picture: Image.Image, fit: Fit, *, name: str) -> np.ndarray:
    """What `read` does, of a picture that is open."""
    channels, height, width = fit.shape
    picture = _eight_bits(ImageOps.exif_transpose(picture), name)
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    picture = _fitted(picture.convert(MODES[channels]), fit, name)
    array = np.asarray(picture, dtype=np.uint8).reshape(height, width, channels)
    return np.ascontiguousarray(array.transpose(2, 0, 1))


def _eight_bits(picture: Image.Image, name: str) -> Image.Image:
    """Sixteen bits to eight by rounding, where PIL would clip."""
    if picture.mode == "F":
        raise DataError(f"{name}: pixels are fractions, and do not say which of them is white")
    if not picture.mode.startswith("I"):
        return picture
    wide = np.asarray(picture).astype(np.int64)
    if wide.min() < 0 or wide.max() > 65535:
        raise DataError(f"{name}: pixels of more than sixteen bits")
    return Image.fromarray(((wide + 128) // 257).astype(np.uint8))


def _fitted(picture: Image.Image, fit: Fit, name: str) -> Image.Image:
    _, height, width = fit.shape
    if fit.resize == "exact":
        if picture.size != (width, height):
            raise DataError(
                f"{name}: {picture.width} x {picture.height} pixels, but the model takes "
                f"{width} x {height}"
            )
        return picture
    filter_ = FILTERS[fit.interpolation]
    if fit.resize == "squash":
        return picture.resize((width, height), filter_)
    wide, high = (int(side / fit.ratio) for side in (width, height))  # what is to be covered
    if high * picture.width >= wide * picture.height:
        wide = int(high * picture.width / picture.height)
    else:
        high = int(wide * picture.height / picture.width)
    if wide * high > MOST:
        raise DataError(f"{name}: {picture.width} x {picture.height} pixels are too oblong to crop")
    left, top = round((wide - width) / 2), round((high - height) / 2)
    return picture.resize((wide, high), filter_).crop((left, top, left + width, top + height))


def folder(
    root: Path, fit: Fit, *, classes: list[str], named: bool, labels: Path | None, strict: bool
) -> Folder:
    """The pictures of a folder, with their labels if there are any.

    Labels come from ``labels``, a CSV file with the columns ``file`` and ``label``; else from
    sub-folders, one for each class; else they are UNKNOWN.

    Args:
        root: The folder; pictures are found at any depth.
        fit: How pictures become pixels.
        classes: The names of the model's outputs, in their order; their numbers if none are known.
        named: Whether ``classes`` are names.
        labels: The CSV file, if any; files that it does not list are UNKNOWN.
        strict: Whether a file that cannot be read is an error.

    Raises:
        DataError: There is no picture that can be read, a label is of no class, or ``strict``.
    """
    names = sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.suffix.lower() in SUFFIXES and path.is_file()
    )
    if not names:
        raise DataError(
            f"{root}: no pictures here, only {', '.join(sorted(SUFFIXES))} are looked at"
        )
    if labels is not None:
        known = _listed(labels, classes, names)
    else:
        known, classes = _sorted_into_folders(root, names, classes, named=named)
    images, places, left_out = np.empty((len(names), *fit.shape), dtype=np.uint8), [], []
    for place, name in enumerate(names):
        try:
            images[len(places)] = read(root / name, fit, name=name)
            places.append(place)
        except DataError as error:
            if strict:
                raise
            left_out.append(str(error))
    if not places:
        raise DataError(f"{root}: none of {len(names)} pictures can be used; {left_out[0]}")
    split = Split(
        idx=np.array(places, dtype=np.int64),
        images=images[: len(places)],
        labels=np.array([known[names[place]] for place in places], dtype=np.int64),
        classes=tuple(classes),
        white=WHITE,
    )
    return Folder(split=split, files=[names[place] for place in places], left_out=left_out)


def _listed(path: Path, classes: list[str], names: list[str]) -> dict[str, int]:
    """Labels from a CSV file; a label is the name of a class, or the number of an output."""
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
        rows = list(zip(table["file"], table["label"], strict=True))
    except FileNotFoundError:
        raise DataError(f"{path}: not found") from None
    except (KeyError, ValueError):
        raise DataError(f"{path}: not a CSV file with the columns file and label") from None
    found = dict.fromkeys(names, UNKNOWN)
    for line, (name, label) in enumerate(rows, start=2):
        if name not in found:
            raise DataError(f"{path}:{line}: there is no picture {name}.{suggest(name, names)}")
        found[name] = _class(label, classes, where=f"{path}:{line}")
    return found


def _class(label: str, classes: list[str], *, where: str) -> int:
    if label in classes:
        return classes.index(label)
    if label.isdecimal() and int(label) < len(classes):
        return int(label)
    raise DataError(
        f"{where}: {label!r} is no class of the {len(classes)} that the model has; give their "
        f"names in the order of its outputs with --classes.{suggest(label, classes)}"
    )


def _sorted_into_folders(
    root: Path, names: list[str], classes: list[str], *, named: bool
) -> tuple[dict[str, int], list[str]]:
    """Labels from the first folder on the way to a picture, and the names of the outputs."""
    folders = sorted({name.partition("/")[0] for name in names if "/" in name})
    loose = [name for name in names if "/" not in name]
    if not folders:
        return dict.fromkeys(names, UNKNOWN), classes
    if loose:
        raise DataError(
            f"{root}: {loose[0]} lies beside folders; pictures are either all in folders of their "
            "class, or none is"
        )
    if not named and not all(folder.isdecimal() for folder in folders):
        if len(folders) != len(classes):
            raise DataError(
                f"{root}: {len(folders)} folders for a model of {len(classes)} classes; give the "
                "names in the order of its outputs with --classes, or labels with --labels"
            )
        classes = folders
    of = {folder: _class(folder, classes, where=f"{root}/{folder}") for folder in folders}
    return {name: of[name.partition("/")[0]] for name in names}, classes
