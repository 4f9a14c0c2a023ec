"""The pictures that an attack found, as files that other programs read."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rrcm.certification.answers import Answers
from rrcm.certification.attacking import judging
from rrcm.certification.certify import UP, printed
from rrcm.core import progress
from rrcm.core.files import atomic
from rrcm.data.splits.pictures import MAX_VALUE
from rrcm.data.splits.shards import Split

PLACES = 4  # decimals of a distance
Found = dict[int, tuple[np.ndarray, str]]


def written(smoothed: Any, split: Split, answers: Answers, *, kept: Path, folder: Path) -> Found:
    """Write what `judging.judged` has ``kept``, by index: pixels [C, H, W] and a line on the file.

    ``<idx>.png`` if the picture of 8 bits is judged to have the same wrong class, on noise of its
    own and at the same alpha; else ``<idx>.npy``. A file that is there was judged before.
    """
    found: Found = {}
    header = answers.header
    apart, to = answers.attacked["attacked"], answers.attacked["attacked_to"]
    rows = [(row.idx, c) for row, r, c in zip(answers.rows, apart, to, strict=True) if r > 0]
    with progress.bar(len(rows), 0, "pictures", " pictures", delay=2.0) as bar:
        for idx, c in rows:
            pixels = np.load(judging.picture(kept, idx))
            eight = np.rint(pixels * MAX_VALUE).astype(np.uint8)
            shown = eight.astype(np.float32) / np.float32(MAX_VALUE)
            png, npy = folder / f"{idx}.png", folder / f"{idx}.npy"
            if not (png.exists() or npy.exists()):
                said = judging.judge(smoothed, header, shown, idx=idx, salt="/8 bits")
                fits = said.label == c and len(pixels) in (1, 3)
                with atomic(png if fits else npy) as path, path.open("wb") as file:
                    if fits:
                        array = eight.transpose(1, 2, 0).squeeze()
                        Image.fromarray(array).save(file, "PNG")
                    else:
                        np.save(file, pixels)
            line = f"{npy.name}: 8 bits do not keep the class"
            if png.exists():
                (x,) = split.pixels(split.idx == idx)
                distance = float(np.linalg.norm((shown - x).astype(float)))
                line = f"{png.name}: 8 bits keep the class, at distance "
                line += printed(distance * (1 + 1e-6), UP, places=PLACES)
            found[idx] = pixels, line
            bar.update()
    return found
