"""``rrcm predict``: classifies one image with a certified radius, or abstains."""

import os
from pathlib import Path

from rrcm.certification.certify import DOWN, one_minus, printed
from rrcm.certification.votes import reach
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.cli.commands.on_demand import VOTES
from rrcm.cli.requests import Request
from rrcm.core import formats
from rrcm.core.errors import DataError, printable


def predict(request: Request, image: str) -> str:
    """Classify an image file, or an image of the classifier's data by its index; or abstain.

    A file gets noise that nobody can predict, once for the same pixels and the same request, unless
    that has a seed: who asks again for the same has the same answer.
    """
    request, truth = request.answering(), ""
    if known := request.source.known_image(image):
        smoothed = request.source.classifier(request.sample, max_value=known.max_value)
        answer = smoothed.answer(known.pixels, idx=int(image), seed=request.sample.seed)
        header = smoothed.definition()
        truth = f"; the label is {known.label}"
    else:
        if not os.path.lexists(image):
            raise DataError(f"--image {formats.missing(image, 'neither a file nor an index')}")
        smoothed = request.source.classifier(request.sample)
        try:
            split = smoothed.split([Path(image)])
        except DataError as error:
            raise DataError(f"--image {error}") from None
        header = smoothed.header(split)
        seed = request.sample.seed if request.seeded else VOTES.seed(header, split)
        answer = smoothed.answer(split.images[0], seed=seed)
    image = printable(image)
    drawn = f"{answer.n_A:,} of {answer.n:,} noisy draws"
    lines = [
        f"stopping rule {answer.rule}",
        *reach.beyond(header, header.stopping.get("radii", [])),
        f"noise: seed {answer.seed}; --seed {answer.seed} repeats it",
    ]
    how = "\n".join(lines)
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
