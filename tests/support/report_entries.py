"""Entries of a report, from random votes."""

from builders import random_votes

from rrcm.analysis.entries import Entry
from rrcm.certification import certify

RADII = [0.0, 0.25, 0.5]
GRID = {"radii": RADII, "beta": 0.001}


def entry(seed, *, name=None, method="rrcm", sigma=0.5, alpha=0.001, **changes):
    drawn = random_votes(
        seed, images=15, n=500, n0=20, sigma=sigma, stop="grid", stopping=GRID, **changes
    )
    table = certify.certify(*drawn, certificates=["cohen"], alpha=alpha)
    name = name or f"{method}-{sigma:g}"
    return Entry(
        name=name, model="tiny", method=method, sigma=sigma, table=table, alpha=alpha, votes=drawn
    )
