"""L2 radii in L-infinity: golden values, rounding, and the open ball."""

import math

import pytest
from builders import refused

from rrcm.analysis.presentation import linf
from rrcm.certification.votes import bounds
from rrcm.core.errors import ConfigError

GOLDEN = [  # votes, draws, R / sqrt(3072) at sigma = .25 and alpha = .001
    (100, 100, 0.0067679661),
    (1000, 1000, 0.011110667),
    (9805, 10_000, 0.0089066367),
    (100_000, 100_000, 0.017191762),
    (97_844, 100_000, 0.0089989373),
    (60_000, 100_000, 0.0010867933),
]


@pytest.mark.parametrize(("hits", "n", "wanted"), GOLDEN)
def test_golden_radii(hits, n, wanted):
    """From Clopper-Pearson and eq. 12, elsewhere."""
    r = bounds.radius(bounds.complement(hits, n, 0.001), sigma=0.25)

    (said,) = linf.notes([r], 3072)
    assert (
        float(said.split()[-2]) == pytest.approx(wanted, rel=1e-3)
        and said.split()[-2] < f"{wanted}"
    )
    assert linf.levels(r, 3072) == math.floor(255 * wanted)


def test_the_ball_is_open_and_no_number_is_rounded_up():
    assert linf.levels(28 / 255, 784) == 0  # one level is its edge
    assert linf.levels(28 / 255 + 1e-9, 784) == 1
    (said,) = linf.notes([0.0, 0.25, 0.5], 3072)
    assert "of 3,072 values (so many of 255 levels): 0.25 is 0.00451 (1), 0.5 is" in said
    with refused(ConfigError, "got 0"):
        linf.notes([0.5], 0)
    assert linf.notes([0.0], 3072) == []
