"""``rrcm predict``: classifies one image with a certified radius, or abstains."""

import os
from pathlib import Path

from rrcm.analysis import entries
from rrcm.analysis.gallery import certified as gallery
from rrcm.certification.certify import DOWN, one_minus, printed
from rrcm.certification.votes import reach
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.cli.app import pages
from rrcm.cli.commands.on_demand import VOTES
from rrcm.cli.requests import Request
from rrcm.core import formats
from rrcm.core.errors import DataError, printable


def predict(request: Request, image: str, *, page: Path | None = None) -> str:
    """Classify an image file, or an image of the classifier's data by its index; or abstain.

    ``page`` shows its votes, and noisy copies that were drawn.

    A file gets noise that nobody can predict, once for the same pixels and the same request, unless
    that has a seed: who asks again for the same has the same answer.
    """
    request, truth = request.answering(), ""
    seed = request.sample.seed
    if known := request.source.known_image(image):
        smoothed = request.source.classifier(request.sample, max_value=known.max_value)
        label = known.classes[known.labels[0]]
        labels = [smoothed.backend.classes.index(label)]
        answers, split = smoothed.alone(known.images[0], labels=labels, idx=int(image), seed=seed)
        truth = f"; the label is {label}"
    else:
        if not os.path.lexists(image):
            raise DataError(f"--image {formats.missing(image, 'neither a file nor an index')}")
        smoothed = request.source.classifier(request.sample)
        try:
            split = smoothed.split([Path(image)])
        except DataError as error:
            raise DataError(f"--image {error}") from None
        if not request.seeded:
            seed = VOTES.seed(smoothed.header(split), split)
        answers, split = smoothed.alone(split.images[0], seed=seed)
    answer, header = answers[0], answers.header
    image = printable(image)
    said = f"abstain: no class is certain at alpha = {answer.alpha}"
    if answer.label != ABSTAIN:
        radius, sure = printed(answer.radius, DOWN, places=4), one_minus(answer.alpha, DOWN)
        within = f"certified within an l2 radius of {radius} with confidence {sure}"
        said = f"class {printable(answer.name)}, {within}"
    lines = [
        f"{image}: {said} ({answer.n_A:,} of {answer.n:,} noisy draws){truth}",
        f"stopping rule {answer.rule}",
        *reach.beyond(header, header.stopping.get("radii", [])),
        f"noise: seed {answer.seed}; --seed {answer.seed} repeats it",
    ]
    if page:
        entry = entries.from_votes(image, header, answers.rows, certificates=[header.certificate])
        files = {answer.idx: image}
        paths = gallery.write(page, entry, split, backend=smoothed.backend, files=files)
        lines.append(pages(paths))
    return "\n".join(lines)
