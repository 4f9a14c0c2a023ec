"""Counts what was done with the same images here: choosing among it is a selection."""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rrcm.certification.certify import DOWN, printed
from rrcm.certification.sampling import store
from rrcm.certification.votes import records
from rrcm.certification.votes.records import Header
from rrcm.core.errors import ConfigError, VotesError
from rrcm.core.files import read_json
from rrcm.data.splits.shards import Split


def line(header: Header, votes: Iterable[Path], split: Split) -> list[str]:
    """Return a line on votes by which the images of ``header`` were certified before; often none.

    It has the failure probability at which k tables would have had to be certified for any of them
    to hold at alpha, the k-th part (union bound).

    Args:
        header: Of the votes that are certified now.
        votes: Files that may have votes of the same classifier on some of the same images.
        split: The images.
    """
    claims = [header]
    for path, earlier in store.definitions(votes):
        if _classifier(earlier) == _classifier(header):
            if not any(_is_same_claim(earlier, one) for one in claims):
                if earlier.pixels == header.pixels or store.rows_of_these(path, split):
                    claims.append(earlier)
    if len(claims) == 1:
        return []
    each = printed(header.alpha / len(claims), DOWN, digits=3)
    tables = sorted((one.n, one.n0, one.stop) for one in claims)
    drawn = ", ".join(f"n = {n:,} and n0 = {n0:,} ({stop})" for n, n0, stop in tables)
    return [
        f"repeated: {len(claims)} tables of these images, {drawn}; one that is chosen among them "
        f"holds at alpha = {header.alpha} only if each was certified at --alpha {each} or less"
    ]


def attacks(header: Header, folder: Path) -> list[str]:
    """Return a line on the attacks on these images; none if there was one.

    Each finds a wrong answer where there is none with probability alpha at most, so the least
    of what k of them leave does with probability k alpha, with the same noise or another.

    Args:
        header: Of the votes of the images.
        folder: Where attacks are kept, beside the votes; those of other images are passed over.
    """
    found = set()
    for path in sorted(folder.glob("*.attack.json")):
        with suppress(VotesError, ConfigError, ValueError, KeyError, TypeError):  # damaged, or old
            radii, search, fields, *_ = json.loads(read_json(path, VotesError)["of"])
            earlier = records.from_fields(fields)
            if (earlier.pixels, _classifier(earlier)) == (header.pixels, _classifier(header)):
                parts = ", ".join(f"{value} {name}" for name, value in search.items())
                found.add((f"n = {earlier.n:,}, {parts}", repr(radii), repr(earlier)))
    if len(found) < 2:
        return []
    each = printed(header.alpha / len(found), DOWN, digits=3)
    searches = "; ".join(dict.fromkeys(search for search, *_ in sorted(found)))
    return [
        f"repeated: {len(found)} attacks on these images ({searches}); what one that is chosen "
        f"among them leaves holds at alpha = {header.alpha} only if each was made at --alpha "
        f"{each} or less"
    ]


def _classifier(header: Header) -> tuple[str, float]:
    # A run's weights are others in another precision; the name of a file from elsewhere is anyone's
    return header.weights if header.foreign else header.run, header.sigma


def _is_same_claim(one: Header, other: Header) -> bool:
    """Return whether the same draws are made, and a bound follows from them in the same way.

    Images, labels, time and names of as many classes only say for which draws there are claims.
    Without a rule, a claim at a smaller alpha follows from that at a larger one.
    """
    beside = one.aside | {"run", "split", "budget"}
    if len(one.classes) == len(other.classes):
        beside.add("classes")
    return {*one.differing(other)} <= beside
