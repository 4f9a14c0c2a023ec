"""Counts the tables of the same images that lie here: choosing among them is a selection."""

import dataclasses
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rrcm.certification.certify import DOWN, printed
from rrcm.certification.sampling import procedure
from rrcm.certification.votes import records
from rrcm.certification.votes.records import Header
from rrcm.cli.commands.trial import FOREIGN
from rrcm.core.errors import ConfigError, VotesError
from rrcm.data.splits.shards import Split

IMAGES = {"run", "split", "subset", "images", "pixels", "shard", "budget"}


def line(header: Header, votes: Iterable[Path], split: Split | None, *, alpha: float) -> list[str]:
    """Return a line on votes by which the images of ``header`` were certified before; often none.

    It has the failure probability at which k tables would have had to be certified for any of them
    to hold at ``alpha``, the k-th part (union bound).

    Args:
        header: Of the votes that are certified now.
        votes: Files that may have votes of the same classifier on some of the same images.
        split: The images; without them, votes with other labels or another subset are not seen.
        alpha: Failure probability of the table.
    """
    claims = {_claim(header): header}
    for path in votes:
        with suppress(VotesError, ConfigError):  # a damaged file is ignored
            earlier = records.definition(path)
            if _classifier(earlier) == _classifier(header) and _claim(earlier) not in claims:
                if earlier.pixels == header.pixels or (
                    split and procedure.rows_of_these(path, split)
                ):
                    claims[_claim(earlier)] = earlier
    if len(claims) == 1:
        return []
    each = printed(alpha / len(claims), DOWN, digits=3)
    tables = sorted((one.n, one.n0, one.stop) for one in claims.values())
    drawn = ", ".join(f"n = {n:,} and n0 = {n0:,} ({stop})" for n, n0, stop in tables)
    return [
        f"repeated: {len(claims)} tables of these images, {drawn}; one that is chosen among them "
        f"holds at alpha = {alpha} only if each was certified at --alpha {each} or less"
    ]


def _classifier(header: Header) -> tuple[str, float]:
    # A run's weights are others in another precision; the name of a file from elsewhere is anyone's
    return header.weights if header.backend.startswith(FOREIGN) else header.run, header.sigma


def _claim(header: Header) -> str:
    """Return what distinguishes claims: the draws, and how a bound follows from them.

    Images, labels and time only say for which draws there are claims. Without a rule, a claim at a
    smaller alpha follows from that at a larger one.
    """
    left_out = IMAGES if header.stop != "none" else IMAGES | {"alpha"}
    return repr({key: v for key, v in dataclasses.asdict(header).items() if key not in left_out})
