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
from PIL import Image, ImageOps, UnidentifiedImageError

from rrcm.core.errors import ConfigError, DataError, one_line
from rrcm.core.files import require_file
from rrcm.core.registry import suggest

MAX_VALUE = 255  # the pixel value that becomes 1.0
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


Resize = Literal["exact", "crop", "squash"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """How a picture is brought to ``shape`` [C, H, W], of one channel (grey) or three (RGB).

    ``resize`` names the rule. ``exact``: a picture of another size is refused. ``crop``: it is
    scaled until it just covers the size divided by ``ratio`` (timm's ``crop_pct``), and its centre
    is cut out. ``squash``: it is scaled to the size, whatever its proportions. Scaling is
    antialiased, ``bicubic`` or ``bilinear``.
    """

    shape: tuple[int, int, int]
    resize: Resize = "exact"
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


def read(source: Path | IO[bytes], fit: Fit, *, name: str | None = None) -> np.ndarray:
    """The first frame of a picture file as pixels, uint8 of ``fit.shape``.

    Args:
        source: A path, or an open file.
        fit: The shape, and how to get there.
        name: What to call it in an error; the path.

    Raises:
        DataError: The file is missing, no picture, damaged or too large, or its size is refused.
    """
    name = str(source) if name is None else name
    return as_array(fitted(decode(source, fit.shape[0], name=name), fit, name=name))


def decode(source: Path | IO[bytes], channels: int, *, name: str) -> Image.Image:
    """The first frame of a picture file, of its own size, eight bits, one channel or three.

    Turned upright as its EXIF data say. Sixteen bits are scaled to eight, transparent pixels shown
    on white, palettes and CMYK converted to RGB, colours to grey by luma where one channel is asked
    for. Raises what `read` does.
    """
    if isinstance(source, Path):
        require_file(source)
    try:
        with Image.open(source, formats=FORMATS) as picture:
            return _upright(picture, channels, name)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DataError(f"{name}: more than {MOST:,} pixels, which may be a trap") from None
    except UnidentifiedImageError:
        raise DataError(f"{name}: not a picture, or of a kind that is not read") from None
    except BROKEN as error:
        raise DataError(f"{name}: a damaged picture ({one_line(error)})") from None


def pixels(picture: Image.Image, fit: Fit, *, name: str) -> np.ndarray:
    """What `read` does, of a picture that is open."""
    return as_array(fitted(_upright(picture, fit.shape[0], name), fit, name=name))


def as_array(picture: Image.Image) -> np.ndarray:
    """The pixels of a picture of one channel or three, uint8 [C, H, W]."""
    array = np.asarray(picture, dtype=np.uint8).reshape(picture.height, picture.width, -1)
    return np.ascontiguousarray(array.transpose(2, 0, 1))


def _upright(picture: Image.Image, channels: int, name: str) -> Image.Image:
    picture = _eight_bits(ImageOps.exif_transpose(picture), name)
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert(MODES[channels])


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


def fitted(picture: Image.Image, fit: Fit, *, name: str) -> Image.Image:
    """``picture`` at the size of ``fit``, by its rule; another size may be refused (DataError)."""
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
