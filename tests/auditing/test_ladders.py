"""Radii betray the n, alpha and sigma that made them, where rungs are further apart than digits."""

import numpy as np
import pytest
from helpers import few
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.audit import simulate
from rrcm.auditing import attainable_radii, ladder, sweep, usual, written
from rrcm.auditing.attainable_radii import AttainableRadii
from rrcm.certification import certify
from rrcm.certification.votes import bounds


def radii(n, alpha, sigma, *, images=300, seed=0):
    """Radii in full, of images that are not all alike."""
    rng = np.random.default_rng(seed)
    found = simulate(rng, n=n, alpha=alpha, sigma=sigma, images=images)["radius"].to_numpy()
    return found[found > 0]


def infer(values, *tried):
    return attainable_radii.infer(values, written.units(values), *tried)


def down(values, digits):
    return np.array([certify.floor(value, digits) for value in values])


def test_the_ceiling_is_the_closed_form():
    """Phi^-1(alpha^(1/n)): 3.8114566 at n = 100,000, alpha = 0.001 (certification literature)."""
    candidate = AttainableRadii(n=100_000, alpha=0.001, sigma=0.5, rounding="down")

    assert candidate.ceiling() == pytest.approx(0.5 * 3.8114566, abs=1e-7)


@few
@given(st.integers(100, 20_000), st.sampled_from([0.001, 0.01]), st.data())
def test_every_certified_radius_is_a_rung(n, alpha, data):
    """Rounded down, to the nearest and up, by whatever decimals."""
    k = data.draw(st.integers(n * 3 // 4, n))
    sigma = data.draw(st.sampled_from([0.12, 0.5, 1.0]))
    digits = data.draw(st.integers(3, 8))
    exact = bounds.radius(bounds.complement(k, n, alpha), sigma=sigma)
    unit = np.array([10.0**-digits])
    written = {
        "down": np.floor(exact / unit) * unit,
        "nearest": np.round(exact / unit) * unit,
        "up": np.ceil(exact / unit) * unit,
    }
    for rounding, value in written.items():
        found = attainable_radii.match(value, unit, n=n, alpha=alpha, sigma=np.float64(sigma))

        assert found.hit[rounding].all(), rounding


@few
@given(st.sampled_from([100, 1_000, 5_000]), st.data())
def test_between_two_rungs_nothing_hits(n, data):
    k = data.draw(st.integers(n * 3 // 4, n - 1))
    low, high = (bounds.radius(bounds.complement(j, n, 0.001), sigma=0.5) for j in (k, k + 1))
    middle, unit = np.array([(low + high) / 2]), np.array([(high - low) / 8])

    found = attainable_radii.match(middle, unit, n=n, alpha=0.001, sigma=np.float64(0.5))

    assert not found.near().any()
    assert found.chance == pytest.approx(1 / 8, rel=1e-3)


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        ([0.125, 1.251, 0.5], [1e-3] * 3),
        ([1.51, 0.953, 0.0427], [1e-2, 1e-3, 1e-4]),  # {:.3} of Python
        ([0.1234567, 2.0000001], [1e-7] * 2),
        ([0.95286417007, 0.5], [2e-7 * 0.95286417007, 1e-7]),  # in full
        ([10.116] * 9 + [0.2451, 6.4987, 9.0548], [1e-4] * 12),  # one heap is one radius
    ],
)
def test_the_last_place_is_seen(values, unit):
    assert written.units(np.array(values)) == pytest.approx(np.array(unit), rel=1e-9)


def test_radii_are_not_called_rounded_up_where_another_sigma_explains_them():
    plain = infer(down(radii(100_000, 0.001, 0.40485829959514175, images=500), 3))
    exact = radii(100_000, 0.01, 0.5015, images=500, seed=1)
    three = infer(np.array([float(f"{radius:.3}") for radius in exact]))

    assert {candidate.rounding for candidate in plain} == {"up", "nearest", "down"}
    assert [candidate.rounding for candidate in three] == ["up", "nearest", "down"]


@pytest.mark.parametrize("seed", range(3))
def test_a_stated_sigma_is_sought_within_its_digits(seed):
    """Neither its middle, 1.01215, nor the shorter 1.012 is sigma."""
    values = down(radii(10_000, 0.01, 1.0121457, images=100, seed=seed), 3)
    values = values[values > 0]
    stated = usual.prior(n=10_000, alpha=0.01, sigma=1.01215)

    [best, *_] = infer(values, stated)

    assert (best.n, best.alpha) == (10_000, 0.01) and 1.012145 <= best.sigma <= 1.012155
    assert best.match(values, np.full(len(values), 1e-3)).hit["down"].all()


def test_a_sigma_at_which_two_neighbouring_radii_meet_is_not_the_best():
    """0.181 and 0.182, rounded down, are not both of the rung at 0.182."""
    seen = written.written(np.array([0.181, 0.182]), np.full(2, 1e-3))
    top = ladder.tops(100, 0.001)[-1]

    _, [best] = sweep.swept(seen, 100, 0.001, [sweep.Window.around(0.182, 1e-3, top, "down")])

    assert best.high - best.low > 1e-4


@few
@given(st.sampled_from([10_000, 100_000, 1_000_000]), st.sampled_from([0.05, 0.001]), st.data())
def test_the_rungs_around_any_number_are_next_to_each_other(n, alpha, data):
    z = np.array(data.draw(st.lists(st.floats(0.1, 3.0), min_size=1, max_size=5)))

    k, low, high = ladder.around(z, np.full(len(z), 1e-9), n, alpha)

    assert (low <= z).all() and (z < high).all()
    assert low.tolist() == ladder.rung(k, n, alpha).tolist()
    assert high.tolist() == ladder.rung(k + 1, n, alpha).tolist()


@pytest.mark.parametrize(
    ("stated", "least", "most"),
    [(0.874916, 0.8749155, 0.8749165), (0.33, 0.325, 0.335), (0.5, 0.5, 0.5), (20.0, 19.95, 20.05)],
)
def test_the_digits_of_a_stated_sigma_are_an_interval_if_it_is_not_usual(stated, least, most):
    assert usual.meant(stated) == (least, most)  # exactly: the true sigma may be at an end


@pytest.mark.parametrize("seed", range(2))
def test_radii_of_no_ladder_are_not_given_one(seed):
    values = np.random.default_rng(seed).uniform(0, 1, 60)

    assert infer(down(values, 6)) == []


def test_a_few_radii_do_not_tell():
    assert infer(down(np.unique(radii(1_000, 0.001, 0.5))[-4:], 6)) == []
