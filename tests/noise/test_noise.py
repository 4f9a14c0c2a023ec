"""The noise of certification: Philox, Box-Muller, and what a row may depend on."""

import hashlib
import math

import numpy as np
import pytest
import torch
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rrcm.noise import streams, units

WORD = 2**32 - 1
words = st.integers(0, WORD)


def row(*, seed=0, image=0, draw=0, stream=streams.CERTIFY, shape=(200_000,)):
    return streams.gaussian(
        seed, torch.tensor([image]), torch.tensor([draw]), shape, stream=stream
    )[0]


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # Random123's kat_vectors, philox4x32 10
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((WORD,) * 4, (WORD, WORD), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),  # pi
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_has_the_known_answers_of_random123(counter, key, expected):
    assert streams.philox(torch.tensor(counter), key).tolist() == list(expected)


@few
@given(st.lists(st.tuples(words, words), min_size=1, max_size=40))
def test_box_muller_is_its_equation(pairs):
    """Library logarithm, cosine and sine in float64, on the same words."""
    a, b = torch.tensor([*pairs, (0, 0), (0, WORD), (WORD, 0), (WORD, WORD)]).unbind(1)
    u = (a + 1).float().double() / 2**32  # in (0, 1], of which float32 keeps 24 bits
    radius, angle = torch.sqrt(-2 * u.log()), 2 * math.pi * (b - 2**29).double() / 2**32

    expected = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1)

    torch.testing.assert_close(streams.box_muller(a, b).double(), expected, atol=1e-5, rtol=0)


def test_noise_is_standard_normal():
    z = row(shape=(1_000_000,)).double()

    assert stats.kstest(z[:200_000], "norm").pvalue > 0.01
    for power, moment, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs((z**power).mean() - moment) < 4 * math.sqrt(variance / len(z)), power


def test_both_normals_of_a_pair_are_independent():
    pair = row().double().view(-1, 2)

    assert abs(torch.corrcoef(pair.T)[0, 1]) < 4 / math.sqrt(len(pair))
    assert abs(torch.corrcoef(pair.T**2)[0, 1]) < 4 / math.sqrt(len(pair))
    assert stats.kstest(pair.square().sum(dim=1), "chi2", args=(2,)).pvalue > 0.01


def test_noise_has_not_moved():
    """Golden of this code: votes on disk were drawn with it, so a change needs a new format."""
    z = row(seed=2**40 + 7, image=123, draw=456, stream=streams.PARITY, shape=(1, 101, 99))

    golden = torch.tensor([0.88593066, 1.268335, 0.32036945, 0.55422956, -0.48232958])

    assert torch.equal(z.flatten()[:5], golden)
    assert hashlib.sha256(z.numpy().tobytes()).hexdigest()[:16] == "aa1b2f07ec8354dc"


def test_the_root_is_that_of_ieee_754():
    """So that the bits are those of any processor; PyTorch's float32 root on a CPU may be off."""
    a = torch.randint(0, 2**32, (100_000,), generator=torch.Generator().manual_seed(0))
    straight_ahead = torch.full_like(a, 1 << 29)  # angle 0: the first normal is the radius

    radius = streams.box_muller(a, straight_ahead)[:, 0]

    squared = -2 * streams._log((a + 1).float() * 2.0**-32)
    assert (radius.numpy() == np.sqrt(squared.numpy())).all()


def test_time_is_sigma_in_model_space():
    """Noise sigma on pixels in [0, 1] is noise t = 2 sigma on pixels in [-1, 1]."""
    x, z, sigma = torch.rand(100), torch.randn(100), torch.tensor(0.25)

    in_model_space = units.to_model_space(x) + units.to_time(sigma) * z

    torch.testing.assert_close(units.to_model_space(x + sigma * z), in_model_space)
    assert units.to_time(sigma) == 0.5
    assert units.to_model_space(torch.tensor([0.0, 0.5, 1.0])).tolist() == [-1, 0, 1]
