"""What pages of one file share: their style, digests for a policy, and pictures in base64."""

import base64
import io
from hashlib import sha256
from pathlib import Path

import numpy as np
from PIL import Image

REPORT = Path(__file__).parents[1] / "report.html.jinja"  # its style is that of all pages
EXACT = 48 * 48  # pixels up to which pictures are stored without loss


def style() -> str:
    """The style of all pages."""
    return inside(REPORT.read_text(encoding="utf-8"), "style")


def inside(html: str, tag: str) -> str:
    """What is in the first element ``tag`` that has no attributes."""
    return html.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]


def digest(html: str, tag: str) -> str:
    """What a Content-Security-Policy calls the first ``style`` or ``script`` element."""
    return "sha256-" + base64.b64encode(sha256(inside(html, tag).encode()).digest()).decode()


def webp(
    pixels: np.ndarray,
    *,
    exact: bool = True,
    side: int | None = None,
    sampled: bool = False,
    quality: int = 80,
) -> str:
    """Pixels [C, H, W], cut to [0, 1], as the base64 of a WebP picture of few bytes.

    If ``exact``, at most `EXACT` pixels have no loss. Others are scaled to at most ``side`` pixels
    a side; ``sampled`` keeps every k-th pixel instead, as averages of noisy pixels have less noise.
    """
    array = np.rint(pixels.clip(0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)
    picture = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    lossless = exact and picture.width * picture.height <= EXACT
    if side is not None and not lossless:
        way = Image.Resampling.NEAREST if sampled else Image.Resampling.LANCZOS
        picture.thumbnail((side, side), way)
    file = io.BytesIO()
    picture.save(file, "WEBP", lossless=lossless, quality=quality, method=2)
    return base64.b64encode(file.getvalue()).decode()
