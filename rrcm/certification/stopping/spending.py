"""Stop once each radius of a table is decided; alpha is spent exactly over all looks (eq. 56).

It is spent as the root of the draws, so that easy images stop early.
"""

from rrcm.certification.votes import boundaries
from rrcm.certification.votes.sequential import Table

Config = Table
DEFAULTS = {"radii": None, "beta": 0.01}


class Rule(boundaries.Rule):
    """Draws while a radius of the table is neither certified nor out of reach."""

    pace = boundaries.Pace(alpha=0.9, beta=0.9, power=0.5)
