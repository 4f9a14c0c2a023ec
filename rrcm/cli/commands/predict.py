"""``rrcm predict``: classifies one image with a certified radius, or abstains."""

import os
from pathlib import Path

import numpy as np

from rrcm.certification.answers import Answer
from rrcm.certification.certify import DOWN, one_minus, printed
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.cli import sources
from rrcm.cli.requests import Request
from rrcm.cli.runs import Trained
from rrcm.core.errors import DataError, printable
from rrcm.data.splits import shards


def predict(request: Request, image: str) -> str:
    """Classify an image file, or a test image by its index in the raw data; or abstain."""
    request = request.answering()
    if isinstance(request.source, Trained) and image.isdecimal():
        answer, truth = _test_image(request, int(image))
    else:
        if not os.path.lexists(image):
            raise DataError(f"--image {image}: neither a file nor an index")
        answer, truth = _certify(request, Path(image)), ""
    image = printable(image)
    drawn = f"{answer.n_A:,} of {answer.n:,} noisy draws"
    how = f"stopping rule {answer.rule}\nnoise: seed {answer.seed}; --seed {answer.seed} repeats it"
    if answer.label == ABSTAIN:
        return (
            f"{image}: abstain: no class is certain at alpha = {answer.alpha} ({drawn}){truth}\n"
            f"{how}"
        )
    radius, sure = printed(answer.radius, DOWN, places=4), one_minus(answer.alpha, DOWN)
    return (
        f"{image}: class {printable(answer.name)}, certified within an l2 radius of {radius} with "
        f"confidence {sure} ({drawn}){truth}\n{how}"
    )


def _test_image(request: Request, image: int) -> tuple[Answer, str]:
    split = shards.read(Path("shards"), "test")
    found = np.flatnonzero(split.idx == image)
    if len(found) == 0:
        some = ", ".join(map(str, split.idx[:5]))
        raise DataError(f"--image {image}: not a test image; test images are {some}, …")
    smoothed = sources.classifier(request, max_value=split.max_value)
    answer = smoothed.answer(split.images[found[0]], idx=image, seed=request.sample.seed)
    return answer, f"; the label is {split.classes[split.labels[found[0]]]}"


def _certify(request: Request, path: Path) -> Answer:
    """Certify a file; without a seed, under fresh noise that nobody can predict."""
    seed = request.sample.seed if request.seeded else None
    try:
        return sources.classifier(request).answer(path, seed=seed)
    except DataError as error:
        raise DataError(f"--image {error}") from None
