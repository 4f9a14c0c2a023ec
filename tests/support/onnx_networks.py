"""Bright and dark pictures, and classifiers of them on disk as ONNX files, built by hand."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from PIL import Image

NETWORK = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[n, c, h, w] x) => (float[n, k] scores)
{
  squares = Mul (x, x)
  flat = Flatten (squares)
  scores = Gemm (flat, w, b)
}
"""


def save(path: Path, side: int, bias: tuple[float, float] = (-0.25, 0.25)) -> None:
    """Scores of bright and dark, from the mean of squared pixels; the file leaves its axes open.

    That mean is above 0.34 if a picture is bright, and below 0.16 if it is dark.
    """
    mean = np.full((side**2, 1), 1 / side**2)
    model = onnx.parser.parse_model(NETWORK)
    for name, values in (("w", np.hstack([mean, -mean])), ("b", bias)):
        weights = np.asarray(values, dtype=np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    onnx.save(model, path)


def pictures(folder: Path, side: int, *, each: int) -> None:
    """Write so many of each class to ``folder/bright`` and ``folder/dark``."""
    rng = np.random.default_rng(0)
    for name, low in (("bright", 150), ("dark", 0)):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            pixels = rng.integers(low, low + 100, (side, side), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
