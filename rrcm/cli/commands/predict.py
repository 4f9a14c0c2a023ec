"""``rrcm predict``: classifies one image with a certified radius, or abstains."""

import os
from pathlib import Path

from rrcm.certification.certify import DOWN, one_minus, printed
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.cli.requests import Request
from rrcm.core.errors import DataError, printable


def predict(request: Request, image: str) -> str:
    """Classify an image file, or an image of the classifier's data by its index; or abstain.

    A file gets fresh noise, which nobody can predict, unless the request has a seed.
    """
    request, truth = request.answering(), ""
    if known := request.source.known_image(image):
        smoothed = request.classifier(max_value=known.max_value)
        answer = smoothed.answer(known.pixels, idx=int(image), seed=request.sample.seed)
        truth = f"; the label is {known.label}"
    else:
        if not os.path.lexists(image):
            raise DataError(f"--image {image}: neither a file nor an index")
        seed = request.sample.seed if request.seeded else None
        try:
            answer = request.classifier().answer(Path(image), seed=seed)
        except DataError as error:
            raise DataError(f"--image {error}") from None
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
