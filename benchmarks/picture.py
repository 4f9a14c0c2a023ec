"""Draws how a certificate is made: an image, noisy copies and their classes, the votes, the radius.

``python -m benchmarks.picture --run RUN --sigma SIGMA --idx IDX --out FILE`` in a checkout that has
``onnx/RUN.onnx`` and ``shards/test``; the figure of the README is of the preset `cifar10-cpu`. The
copies shown are the first that the certificate counted.
"""

import argparse
import dataclasses
from pathlib import Path

import numpy as np
import torch
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rrcm.analysis.presentation import figures
from rrcm.certification import openers
from rrcm.certification.answers import Answer
from rrcm.certification.certify import DOWN, one_minus, printed
from rrcm.certification.sampling import store, voting
from rrcm.certification.smoothed import Smoothed
from rrcm.data.splits import shards
from rrcm.data.splits.shards import Split

ROWS, COLUMNS = 2, 4  # noisy copies


def main() -> None:
    asked = options(__doc__).parse_args()
    smoothed, split = opened(asked)
    answer = smoothed.answer(split.images[0], idx=asked.idx, seed=0)
    figures.save(drawn(smoothed, split, answer), asked.out)
    p_A = printed(answer.p_A, DOWN, places=3)
    print(f"{answer.n_A:,} of {answer.n:,} votes; p_A {p_A}, {said(answer)}")


def options(description: str | None) -> argparse.ArgumentParser:
    """A run, one of its test images, and where the figure goes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--run", required=True)
    parser.add_argument("--sigma", type=float, required=True)
    parser.add_argument("--idx", type=int, required=True, help="index of the test image")
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--out", type=Path, required=True, help="a PNG or SVG file")
    return parser


def opened(asked: argparse.Namespace) -> tuple[Smoothed, Split]:
    """The smoothed classifier that was asked for, and a split with the image alone."""
    whole = shards.read(Path("shards"), "test")
    (place,) = np.flatnonzero(whole.idx == asked.idx)
    one = np.array([place])
    split = dataclasses.replace(
        whole, idx=whole.idx[one], images=whole.images[one], labels=whole.labels[one]
    )
    smoothed = openers.trained(asked.run, sigma=asked.sigma)
    draws = dataclasses.replace(smoothed.draws, n=asked.n, stop="none", stopping={}, seed=0)
    smoothed = dataclasses.replace(smoothed, draws=draws, max_value=split.max_value)
    return smoothed, split


def drawn(smoothed: Smoothed, split: Split, answer: Answer) -> Figure:
    """The image, its copies, and what the certificate says."""
    noisy, classes = copies(smoothed, split)
    pixels = split.pixels()[0]
    with style.context(figures.STYLE):
        figure = Figure(figsize=(12, 3.0), layout="constrained")
        left, middle, right = figure.subfigures(1, 3, width_ratios=[1, 2.1, 2])
        axis = left.subplots()
        show(axis, pixels, "an image x", size=10)
        for place, axis in enumerate(middle.subplots(ROWS, COLUMNS).ravel()):
            show(axis, noisy[place], smoothed.backend.classes[classes[place]])
        middle.suptitle(
            f"{answer.n:,} noisy copies, x + σz with σ = {smoothed.sigma:g}: their classes",
            fontsize=10,
        )
        axis = right.subplots()
        share = 100 * answer.n_A / answer.n
        shares = [share, 100 - share]
        axis.barh([1, 0], shares, color=[figures.colour(0), figures.colour(1)], height=0.5)
        axis.set_yticks([1, 0], [f"class {answer.name}", "others"])
        for height, votes in ((1, answer.n_A), (0, answer.n - answer.n_A)):
            axis.text(2, height + 0.3, f"{votes:,} votes", fontsize=9)
        axis.set_xlim(0, 100)
        axis.set_ylim(-0.5, 1.7)
        axis.set_xlabel("% of the copies")
        axis.set_title(
            f"p_A ≥ {printed(answer.p_A, DOWN, places=3)} with confidence "
            f"{one_minus(answer.alpha, DOWN)}:\nclass {answer.name} for every image within "
            f"ℓ₂ distance {printed(answer.radius, DOWN, places=3)}",
            fontsize=10,
        )
    return figure


def said(answer: Answer) -> str:
    """The answer in a few words."""
    if answer.abstained:
        return "abstains"
    return f"class {answer.name} within {printed(answer.radius, DOWN, places=3)}"


def copies(smoothed: Smoothed, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """The first noisy copies that were counted for the bound, and the classes of their scores."""
    header = store.header(smoothed.backend, split, "", smoothed.draws)
    count, first = smoothed.draws.batch_size, smoothed.draws.n0
    images = torch.from_numpy(split.idx).expand(count).clone()
    x = torch.from_numpy(split.pixels()).expand(count, *split.images.shape[1:]).clone()
    noisy = voting.noise(header, split).noisy(x, images, first + torch.arange(count))
    classes = smoothed.backend.scores(noisy).argmax(dim=1)
    return noisy.numpy(), classes.numpy()


def show(axis: Axes, pixels: np.ndarray, title: str, *, size: int = 9) -> None:
    """An image [C, H, W] under a title."""
    shown = pixels.clip(0, 1).transpose(1, 2, 0)
    axis.imshow(shown.squeeze(), cmap="gray", vmin=0, vmax=1)
    axis.set_title(title, fontsize=size)
    axis.set_axis_off()


if __name__ == "__main__":
    main()
