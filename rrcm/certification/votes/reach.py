"""The radii that n draws can certify, and those that are decided where nobody names any.

The largest is that of unanimous votes, a multiple of sigma (eq. 12) that grows with n. So radii by
default are multiples of sigma within reach: the same questions at every sigma, none in vain.
"""

import dataclasses
import math
from collections.abc import Sequence

from rrcm.certification.votes import boundaries
from rrcm.certification.votes.bounds import complement, radius
from rrcm.certification.votes.counts import unanimous
from rrcm.certification.votes.records import Header
from rrcm.certification.votes.sequential import MARGIN

STEP = 0.5  # sigmas from one radius to the next
SPENT = 1e-8  # share of alpha, more than rules that spend it exactly keep for their own rounding


def named(header: Header) -> Header:
    """``header``, whose rule decides the radii of `usual` if it has None."""
    if header.stopping.get("radii", ()) is not None:
        return header
    return dataclasses.replace(header, stopping=header.stopping | {"radii": usual(header)})


def shown(header: Header) -> list[float]:
    """The radii of a table: those that the rule decides, or `usual`."""
    return sorted(header.stopping.get("radii") or usual(header))


def usual(header: Header) -> list[float]:
    """0, sigma / 2, sigma, … in pixels, as far as votes of ``header`` can reach."""
    step, end = STEP * header.sigma, largest(header)
    count = max(0, math.floor((end - MARGIN) / step))
    return [float(f"{place * step:.9g}") for place in range(count + 1)]


def largest(header: Header) -> float:
    """The radius in pixels that n unanimous votes certify; 0 if they certify nothing."""
    if "radii" in header.stopping:  # it does not depend on them
        header = dataclasses.replace(header, stopping=header.stopping | {"radii": [0.0]})
    rule = header.rule()
    if isinstance(rule, boundaries.Rule):
        # No look has spent any alpha on votes that are unanimous and still undecided at n: there
        # the bound is that of n draws alone, and takes no recursion.
        q = complement(header.n, header.n, rule.claim.alpha * (1 - SPENT))
        return max(0.0, radius(q, sigma=header.sigma))
    return rule.claim.radius(unanimous(rule), rule)


def beyond(header: Header, radii: Sequence[float]) -> list[str]:
    """A line on those of ``radii`` that no image can reach; often none."""
    end = largest(header)
    if not (far := [f"{one:g}" for one in sorted(radii) if one > end - MARGIN]):
        return []
    return [
        f"out of reach: r = {', '.join(far)}: {header.n:,} unanimous votes at sigma = "
        f"{header.sigma:g} and alpha = {header.alpha:g} certify {math.floor(1000 * end) / 1000:g}; "
        "more draws or a larger sigma reach further"
    ]
