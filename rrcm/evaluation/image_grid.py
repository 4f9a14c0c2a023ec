"""Image grids for visual inspection: generated images beside real ones.

Grids are uint8 [H, W, C], 8 bits per channel. Each picture is enlarged without smoothing, so that
its pixels can be seen.
"""

import numpy as np
from PIL import Image, ImageDraw

SIDE = 10  # pictures per row and per column of `samples`, and rows of `levels`
GAP = 2  # pixels between pictures
HEAD = 18  # pixels above the columns of `levels`, for their labels


def samples(made: np.ndarray, real: np.ndarray, *, max_value: int) -> np.ndarray:
    """The first hundred pictures ``made``, and as many ``real`` ones to their right.

    Both uint8 [N, C, H, W], with ``max_value`` for 1.0. A picture has at least 32 pixels a side.
    """
    size = {"down": SIDE, "least": 32, "max_value": max_value}
    between = _grid(made[:0], across=1, **size)
    sides = [_grid(pictures, across=SIDE, **size) for pictures in (made, real)]
    return np.concatenate([sides[0], between, sides[1]], axis=1)


def levels(real: np.ndarray, made: np.ndarray, at: list[float], *, max_value: int) -> np.ndarray:
    """One row for each of ``real`` [N, C, H, W]: the image, then its ``made`` [N, L, C, H, W].

    Above each column is its noise level, from ``at`` [L]. A picture has at least 64 pixels a side.
    """
    cells = np.concatenate([real[:, None], made], axis=1)
    down, across = cells.shape[:2]
    flat = cells.reshape(-1, *cells.shape[2:])
    grid = _grid(flat, across=across, down=down, least=64, max_value=max_value)
    head = Image.new("L", (grid.shape[1], HEAD), 255)
    draw, width = ImageDraw.Draw(head), grid.shape[1] // across
    for column, text in enumerate(["image", *(f"t = {t:.3g}" for t in at)]):
        middle = column * width + (width - GAP - draw.textlength(text)) / 2
        draw.text((middle, 2), text, fill=0)
    wide = np.asarray(head)[:, :, None].repeat(grid.shape[2], axis=2)
    return np.concatenate([wide, grid])


def _grid(
    pictures: np.ndarray, *, across: int, down: int, least: int, max_value: int
) -> np.ndarray:
    """The first ``across`` x ``down`` pictures in rows, each enlarged to ``least`` pixels a side.

    Each has a white edge below and to the right; missing pictures are white.
    """
    channels, side = pictures.shape[1], pictures.shape[-1]
    scale = -(-least // side)
    cell = scale * side + GAP
    whole = np.full((down * cell, across * cell, channels), 255, dtype=np.uint8)
    for place, picture in enumerate(pictures[: across * down]):
        grey = np.rint(picture * (255 / max_value)).astype(np.uint8)
        large = grey.repeat(scale, axis=1).repeat(scale, axis=2).transpose(1, 2, 0)
        y, x = place // across * cell, place % across * cell
        whole[y : y + cell - GAP, x : x + cell - GAP] = large
    return whole
