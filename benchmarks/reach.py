"""Draws what a certificate covers: changes of an image, how far they are, and the answers to them.

``python -m benchmarks.reach --run RUN --sigma SIGMA --idx IDX --out FILE`` in a checkout that has
``onnx/RUN.onnx`` and ``shards/test``; the figure of docs/certificates.md is of the preset `mnist`.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import ndimage

from benchmarks import picture
from rrcm.analysis.presentation import figures
from rrcm.certification.answers import Answer
from rrcm.data.splits import shards

COLUMNS = 4
INSIDE = 0.99  # of the radius: the certificate is for distances below it


@dataclass(frozen=True)
class Change:
    """A changed image [C, H, W], and what the smoothed classifier answers to it."""

    name: str
    pixels: np.ndarray
    distance: float
    answer: Answer


def main() -> None:
    asked = picture.options(__doc__).parse_args()
    smoothed, split = picture.opened(asked)
    x = split.pixels()[0]
    answer = smoothed.answer(x, idx=asked.idx, seed=0)
    if answer.abstained:
        raise SystemExit(f"--idx {asked.idx}: nothing is certified; choose another image")
    changed = images(x, *nearest(x, int(split.labels[0])), radius=answer.radius)
    changes = [
        Change(name, y, distance(x, y), smoothed.answer(y, idx=asked.idx, seed=0))
        for name, y in changed.items()
    ]
    figures.save(drawn(x, answer, changes), asked.out)
    for change in changes:
        print(f"{change.name:24} {change.distance:6.2f}  {picture.said(change.answer)}")


def nearest(x: np.ndarray, label: int) -> tuple[np.ndarray, str]:
    """The test image of another class that is closest to ``x``, and its class."""
    whole = shards.read(Path("shards"), "test")
    others = np.flatnonzero(whole.labels != label)
    found = others[((whole.pixels(others) - x) ** 2).sum(axis=(1, 2, 3)).argmin()]
    return whole.pixels(found[None])[0], whole.classes[whole.labels[found]]


def images(
    x: np.ndarray, other: np.ndarray, other_name: str, *, radius: float
) -> dict[str, np.ndarray]:
    """Changes by name: two within the radius, and others of which it says nothing."""
    grain = np.abs(np.random.default_rng(0).standard_normal(x.shape)) * np.where(x < 0.5, 1, -1)
    middle = x.shape[-1] // 2
    covered = x.copy()
    covered[..., middle - 4 : middle + 4, middle - 4 : middle + 4] = 0.5
    return {
        "noise": x + INSIDE * radius / np.linalg.norm(grain) * grain,
        f"towards a {other_name}": x + INSIDE * radius / distance(x, other) * (other - x),
        f"that {other_name}": other,
        "half as bright": 0.5 * x,
        "a grey square": covered,
        "shifted by 2 pixels": np.roll(x, 2, axis=-1),
        "rotated by 30°": turned(x, 30),
    }


def turned(x: np.ndarray, degrees: float) -> np.ndarray:
    """Turned about the centre, with what comes in from outside black."""
    return ndimage.rotate(x, degrees, axes=(-2, -1), reshape=False, order=1).clip(0, 1)


def distance(x: np.ndarray, y: np.ndarray) -> float:
    """Between two images, in the norm of the certificate."""
    return float(np.linalg.norm(np.asarray(y, dtype=np.float64) - x))


def drawn(x: np.ndarray, answer: Answer, changes: list[Change]) -> Figure:
    """The image and its changes, and their distances on one axis."""
    with style.context(figures.STYLE):
        figure = Figure(figsize=(9.6, 6.6), layout="constrained")
        above, below = figure.subfigures(2, 1, height_ratios=[3, 1.1])
        axes = above.subplots(-(-(len(changes) + 1) // COLUMNS), COLUMNS).ravel()
        picture.show(axes[0], x, f"the image\n{picture.said(answer)}")
        for number, (axis, change) in enumerate(zip(axes[1:], changes, strict=True), start=1):
            said = "abstains" if change.answer.abstained else f"class {change.answer.name}"
            covered = "certified" if change.distance < answer.radius else "not covered"
            result = f"ℓ₂ {change.distance:.2f}, {covered}: {said}"
            picture.show(axis, change.pixels, f"{number}: {change.name}\n{result}")
        _distances(below.subplots(), answer, changes)
    return figure


def _distances(axis: Axes, answer: Answer, changes: list[Change]) -> None:
    blue, orange = figures.colour(0), figures.colour(1)
    side = axis.get_yaxis_transform()  # x from 0 to 1 across the axis
    axis.axvspan(0, answer.radius, color=blue, alpha=0.25, linewidth=0)
    axis.text(answer.radius, 1.25, f" certified: class {answer.name}", color=blue, va="center")
    axis.text(1, 1.25, "no claim ", color=orange, va="center", ha="right", transform=side)
    marks: dict[tuple[float, bool], list[str]] = {}  # one mark for those at the same place
    for number, change in enumerate(changes, start=1):
        place = round(change.distance, 2), change.distance < answer.radius
        marks.setdefault(place, []).append(str(number))
    for (place, inside), numbers in marks.items():
        axis.plot(place, 0, "o" if inside else "s", color=blue if inside else orange)
        axis.text(place, 0.35, ", ".join(numbers), ha="center", va="bottom")
    axis.set_xlim(left=0)
    axis.set_ylim(-0.5, 1.7)
    axis.set_yticks([])
    axis.set_xlabel("ℓ₂ distance from the image, pixels in [0, 1]")


if __name__ == "__main__":
    main()
