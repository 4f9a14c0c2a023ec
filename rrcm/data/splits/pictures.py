"""Decodes picture files of any mode and orientation to uint8 pixels [C, H, W] of one shape.

This happens before the noise and is not part of the certified function: a certificate holds for the
pixels that this module returns, not for those in the file.
"""

import struct
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, get_args

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from rrcm.core import formats
from rrcm.core.errors import ConfigError, DataError, one_line
from rrcm.core.files import require_file
from rrcm.core.registry import suggest

MAX_VALUE = 255  # the pixel value that becomes 1.0
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # no format runs a program
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
# Tags of TIFF: which value is white, the bits of a value, and whether it is signed (2)
PHOTOMETRIC, BITS, FORMAT = 262, 258, 339
MODES = {1: "L", 3: "RGB"}
PIXELS = Image.MAX_IMAGE_PIXELS or 0  # larger pictures are refused as decompression bombs
BROKEN = (  # exceptions of PIL on damaged files and files that are not pictures
    *(OSError, SyntaxError, ValueError, TypeError, IndexError, KeyError, EOFError, OverflowError),
    *(NotImplementedError, ZeroDivisionError, MemoryError, struct.error, zlib.error),
    *(Image.DecompressionBombError, Image.DecompressionBombWarning),
)
Image.init()  # loads PIL's plugins for all FORMATS
warnings.filterwarnings("error", category=Image.DecompressionBombWarning)  # an error, not a warning


Resize = Literal["exact", "crop", "squash"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """How a picture is brought to ``shape`` [C, H, W], with one channel (grey) or three (RGB).

    ``resize`` is one of three rules. ``exact``: a picture of another size is refused. ``crop``: it
    is scaled until it just covers the size divided by ``ratio`` (timm's ``crop_pct``), then centre
    cropped. ``squash``: it is scaled to the size without keeping its proportions. Scaling is
    antialiased, ``bicubic`` or ``bilinear``. With ``keep`` a picture that has the size already is
    left as it is, by every rule. Before that a picture is turned ``upright`` by its EXIF data;
    timm and torchvision take it as it is stored.
    """

    shape: tuple[int, int, int]
    resize: Resize = "exact"
    ratio: float = 0.875
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    keep: bool = False
    upright: bool = True

    def __post_init__(self) -> None:
        if self.shape[0] not in MODES:
            raise DataError(f"pictures have 1 or 3 channels, but the model takes {self.shape[0]}")
        for value, known in ((self.resize, get_args(Resize)), (self.interpolation, FILTERS)):
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
        kept = ", those of this size as they are" if self.keep else ""
        turned = "turned upright by EXIF" if self.upright else "not turned by EXIF"
        rule = {
            "exact": f"pictures of {size} pixels, as they are",
            "crop": f"{scaled} to cover {size} / {self.ratio:g}, then its centre cut out{kept}",
            "squash": f"{scaled} to {size}, proportions not kept",
        }[self.resize]
        return f"{turned}; {rule}"


def read(source: Path | IO[bytes], fit: Fit, *, name: str | None = None) -> np.ndarray:
    """The first frame of a picture file as pixels, uint8 of ``fit.shape``.

    Args:
        source: A path, or an open file.
        fit: The shape, and the rule of scaling.
        name: Its name in errors; by default the path.

    Raises:
        DataError: The file is missing, not a picture, damaged or too large, or its size is refused.
    """
    name = str(source) if name is None else name
    decoded = decode(source, fit.shape[0], name=name, upright=fit.upright)
    return as_array(fitted(decoded, fit, name=name))


def decode(
    source: Path | IO[bytes], channels: int, *, name: str, upright: bool = True
) -> Image.Image:
    """The first frame of a picture file at its own size, with eight bits and 1 or 3 channels.

    It is turned ``upright`` by its EXIF data. Sixteen bits are scaled to eight, transparency is
    shown on white, palettes and CMYK converted to RGB, and colours to grey by luma if ``channels``
    is 1. Raises the errors of `read`.
    """
    if isinstance(source, Path):
        require_file(source)
    try:
        with Image.open(source, formats=FORMATS) as picture:
            return _plain(picture, channels, name, upright=upright)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DataError(f"{name}: more than {PIXELS:,} pixels, which may be a trap") from None
    except UnidentifiedImageError:
        why = formats.told(source, "not a picture, or of a kind that is not read", own=("picture",))
        raise DataError(f"{name}: {why}") from None
    except BROKEN as error:
        raise DataError(f"{name}: a damaged picture ({one_line(error)})") from None


def pixels(picture: Image.Image, fit: Fit, *, name: str) -> np.ndarray:
    """As `read`, for a picture that is already open."""
    plain = _plain(picture, fit.shape[0], name, upright=fit.upright)
    return as_array(fitted(plain, fit, name=name))


def as_array(picture: Image.Image) -> np.ndarray:
    """The pixels of a picture with 1 or 3 channels, uint8 [C, H, W]."""
    array = np.asarray(picture, dtype=np.uint8).reshape(picture.height, picture.width, -1)
    return np.ascontiguousarray(array.transpose(2, 0, 1))


def _plain(picture: Image.Image, channels: int, name: str, *, upright: bool) -> Image.Image:
    tags = getattr(picture, "tag_v2", {})  # of TIFF; PIL inverts such pictures of eight bits only
    if picture.mode.startswith("I") and tags.get(PHOTOMETRIC) == 0:
        raise DataError(f"{name}: sixteen bits of which 0 is white; save it with 0 as black")
    # Of a PNG, the transparent colour of other than eight bits, as of L;4, PIL leaves as it is.
    depths = [str(one.args) for one in getattr(picture, "tile", ())]
    wide = picture.mode.startswith("I") or (picture.mode != "P" and ";" in "".join(depths))
    if wide and "transparency" in picture.info:
        raise DataError(
            f"{name}: a transparent colour of other than eight bits; save it with alpha"
        )
    if picture.mode == "F" or 2 in tags.get(FORMAT, ()):
        what = "fractions" if picture.mode == "F" else "signed"
        raise DataError(f"{name}: pixels are {what}, and do not say which of them is white")
    bits = max(tags.get(BITS, (16,)))
    picture = _eight_bits(ImageOps.exif_transpose(picture) if upright else picture, bits, name)
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert(MODES[channels])


def _eight_bits(picture: Image.Image, bits: int, name: str) -> Image.Image:
    """Convert more than eight ``bits`` to eight by rounding, where PIL would clip."""
    if not picture.mode.startswith("I"):
        return picture
    wide, white = np.asarray(picture).astype(np.int64), 2**bits - 1
    if bits > 16 or wide.min() < 0 or wide.max() > white:
        raise DataError(f"{name}: pixels of more than sixteen bits")
    return Image.fromarray(((MAX_VALUE * wide + white // 2) // white).astype(np.uint8))


def fitted(picture: Image.Image, fit: Fit, *, name: str) -> Image.Image:
    """``picture`` scaled by the rule of ``fit``, which may refuse its size (DataError)."""
    _, height, width = fit.shape
    if fit.resize == "exact" and picture.size != (width, height):
        raise DataError(
            f"{name}: {picture.width} x {picture.height} pixels, but the model takes "
            f"{width} x {height}"
        )
    if fit.resize == "exact" or (fit.keep and picture.size == (width, height)):
        return picture
    filter_ = FILTERS[fit.interpolation]
    if fit.resize == "squash":
        return picture.resize((width, height), filter_)
    wide, high = (int(side / fit.ratio) for side in (width, height))  # the area to cover
    if high * picture.width >= wide * picture.height:
        wide = int(high * picture.width / picture.height)
    else:
        high = int(wide * picture.height / picture.width)
    if wide * high > PIXELS:
        raise DataError(f"{name}: {picture.width} x {picture.height} pixels are too oblong to crop")
    left, top = round((wide - width) / 2), round((high - height) / 2)
    return picture.resize((wide, high), filter_).crop((left, top, left + width, top + height))
