"""What pages of one file share: a layout with its style and policy, and pictures in base64."""

import base64
import io
from hashlib import sha256
from pathlib import Path

import jinja2
import numpy as np
from PIL import Image

LAYOUT = Path(__file__).with_name("embedded.html.jinja")
REPORT = Path(__file__).parents[1] / "report.html.jinja"  # its style is that of all pages
EXACT = 48 * 48  # pixels up to which pictures are stored without loss


def page(template: Path, **shown: object) -> str:
    """The HTML of a ``template`` that extends the layout.

    Its Content-Security-Policy lets nothing run but its own script, and asks nothing of a network.
    """
    folders = jinja2.FileSystemLoader([template.parent, LAYOUT.parent])
    environment = jinja2.Environment(
        loader=folders, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    _, _, style = REPORT.read_text(encoding="utf-8").partition("<style>\n")
    shown |= {"report": style.partition("</style>")[0], "digest": _digest}
    return environment.get_template(template.name).render(shown)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(sha256(text.encode()).digest()).decode()


def webp(pixels: np.ndarray, *, side: int, exact: bool = True, sampled: bool = False) -> str:
    """Pixels [C, H, W], cut to [0, 1], as the base64 of a WebP picture of few bytes.

    If ``exact``, at most `EXACT` pixels have no loss. Others are scaled to at most ``side`` pixels
    a side; ``sampled`` keeps every k-th pixel instead, as averages of noisy pixels have less noise.
    """
    array = np.rint(pixels.clip(0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)
    picture = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    lossless = exact and picture.width * picture.height <= EXACT
    if not lossless:
        way = Image.Resampling.NEAREST if sampled else Image.Resampling.LANCZOS
        picture.thumbnail((side, side), way)
    file = io.BytesIO()
    picture.save(file, "WEBP", lossless=lossless, quality=80, method=2)
    return base64.b64encode(file.getvalue()).decode()
