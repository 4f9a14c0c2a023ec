"""Noise components: bits that depend on nothing else, kernels that change none, exact steps."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from builders import refused
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rrcm.certification.distributions import _steps, gaussian, sound, uniform
from rrcm.certification.sampling import philox
from rrcm.core.errors import DataError
from rrcm.noise import streams

WORD = 2**32 - 1
words = st.integers(0, WORD)
seeds = st.integers(0, 2**64 - 1)
places = st.lists(st.tuples(words, words), min_size=1, max_size=20)
shapes = st.sampled_from([(1, 1, 1), (1, 3, 3), (3, 5, 7), (1, 8, 8), (2, 1, 17)])
COMPONENTS = [gaussian, sound, uniform]
each = pytest.mark.parametrize("component", COMPONENTS, ids=lambda c: c.__name__.split(".")[-1])


def levels(rows, shape, max_value=16):
    """Some images on their grid, the same for the same arguments."""
    k = np.random.default_rng(0).integers(0, max_value + 1, (rows, *shape))
    return torch.from_numpy(k.astype(np.float32) / np.float32(max_value))


def draw(component, where, shape=(1, 8, 8), *, x=None, sigma=0.5, seed=0, max_value=16):
    images, draws = torch.tensor(where).unbind(1)
    x = levels(len(where), shape, max_value) if x is None else x
    return component.noisy(x, sigma, seed=seed, images=images, draws=draws, max_value=max_value)


def same(a, b):
    """Bit for bit, the sign of a zero included."""
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


@few
@given(seeds, places, shapes, st.floats(2**-10, 4))
def test_gaussian_is_bitwise_the_torch_code(seed, where, shape, sigma):
    images, draws = torch.tensor(where).unbind(1)
    x = levels(len(where), shape)

    expected = x + sigma * streams.gaussian(seed, images, draws, shape)

    assert same(draw(gaussian, where, shape, sigma=sigma, seed=seed), expected)


def box_muller_agrees(a, b):
    pairs = torch.stack([torch.as_tensor(a), torch.as_tensor(b)], dim=-1).reshape(1, -1)
    expected = streams.box_muller(pairs[:, ::2], pairs[:, 1::2]).flatten(1)
    got = philox.box_muller(pairs.numpy().astype(np.uint32), expected.shape[1:])
    assert same(got, expected)


def test_extreme_words_have_the_bits_of_the_torch_code():
    """Both ends, all powers of two, the ends of quadrants, and both sides of sqrt(1/2)."""
    near = [c + e for c in (0, 2**30, 2**31, 3 * 2**30, 2**32) for e in range(-3, 4)]
    near += [2**k + e for k in range(33) for e in range(-2, 3)]
    root = int(np.float32(math.sqrt(0.5)) * 2**32)  # mantissas that the logarithm divides at
    near += [(root >> k) + e for k in range(9) for e in range(-300, 301, 1 if k == 0 else 50)]
    near = sorted({word for word in near if 0 <= word <= WORD})
    some = [0, 1, 2**29, 2**30 - 1, 2**30, 2**31, 3 * 2**30, WORD - 1, WORD]

    for a, b in ((near, some), (some, near)):
        box_muller_agrees(*np.array([*itertools.product(a, b)]).T)


def test_random_words_have_the_bits_of_the_torch_code():
    box_muller_agrees(*np.random.default_rng(0).integers(0, 2**32, (2, 500_000)))


@each
@few
@given(seed=seeds, where=places, shape=shapes)
def test_a_row_does_not_depend_on_its_batch(component, seed, where, shape):
    x = levels(len(where), shape)

    batch = draw(component, where, x=x, seed=seed)

    assert batch.shape == x.shape and batch.dtype == torch.float32
    for row, place in enumerate(where):
        assert same(batch[row], draw(component, [place], x=x[row : row + 1], seed=seed)[0])


@each
def test_a_row_does_not_depend_on_how_pixels_lie_in_memory(component):
    where, x = [(1, 2), (1, 3), (1, 4)], levels(1, (3, 4, 5)).expand(3, 3, 4, 5)
    plain, last = x.contiguous(), x.contiguous(memory_format=torch.channels_last)
    before = plain.clone()

    answers = [draw(component, where, x=pixels) for pixels in (x, plain, last)]

    assert same(answers[0], answers[1]) and same(answers[0], answers[2])
    assert torch.equal(plain, before)


@each
def test_changing_one_coordinate_gives_independent_noise(component):
    x = torch.full((1, 1, 300, 300), 0.5)
    one = draw(component, [(0, 0)], x=x).flatten() - 0.5

    for place, seed in [((0, 0), 1), ((0, 0), 2**32), ((0, 1), 0), ((1, 0), 0)]:
        other = draw(component, [place], x=x, seed=seed).flatten() - 0.5
        for power in (1, 2):
            pair = torch.stack([one, other]) ** power
            assert abs(torch.corrcoef(pair)[0, 1]) < 4.5 / 300


def test_sound_noise_has_not_moved():
    """Golden of this code: votes on disk were drawn with it, so a change needs a new NAME."""
    got = draw(sound, [(123, 456)], x=torch.zeros(1, 1, 9, 11), sigma=1.0, seed=2**40 + 7)

    assert got.flatten()[-4:].tolist() == [0.8125, 0.125, 0.0625, 0.0]


def test_kernels_compile_where_nothing_can_be_written():
    """A function without a file has no folder to keep its machine code in."""
    scope = {}
    exec("def double(x):\n    return 2 * x", scope)

    assert philox._kernel(scope["double"])(21) == 42


@few
@given(st.floats(0.01, 1), st.sampled_from([1, 16, 100]))
def test_thresholds_are_those_of_a_rounded_normal(sigma, max_value):
    below = sound.thresholds(sigma, max_value)
    m = len(below) // 2
    i = np.arange(-m, m)

    assert (np.diff(below) >= 0).all() and (below > 0).all()
    assert [int(t) for t in below] == [2**63 - int(t) for t in below[::-1]]
    expected = stats.norm.cdf((2 * i[:m] + 1) / (2 * max_value * sigma))
    np.testing.assert_allclose(below[:m] / 2**63, expected, rtol=1e-9, atol=2.0**-63)
    assert stats.norm.cdf(-(2 * m + 1) / (2 * max_value * sigma)) < 2.0**-63


@pytest.mark.parametrize(("sigma", "max_value"), [(0.5, 16), (1 / 3, 255)])
def test_slack_covers_the_distance_to_exact_noise(sigma, max_value):
    """Total variation per pixel, with 300 bits: half the sum over all steps, tails included."""
    with mpmath.workprec(300):
        below = [int(t) for t in sound.thresholds(sigma, max_value)]
        m = len(below) // 2
        phi = [mpmath.ncdf(mpmath.mpf(2 * i + 1) / (2 * max_value * mpmath.mpf(sigma)))
               for i in range(-m - 1, m + 1)]  # fmt: skip
        exact = [phi[0], *(b - a for a, b in itertools.pairwise(phi)), 1 - phi[-1]]
        drawn = [0, *(b - a for a, b in itertools.pairwise([0, *below, 2**63])), 0]
        far = [abs(p - mpmath.ldexp(q, -63)) for p, q in zip(exact, drawn, strict=True)]
        distance = sum(far) / 2

        assert 0 < distance < sound.slack(sigma, pixels=1, max_value=max_value) < 50 * distance
    assert sound.slack(sigma, pixels=3072, max_value=max_value) < 1e-9


def test_counts_are_a_search_among_the_thresholds():
    """At, below and above each threshold, and at both ends of u."""
    for sigma, max_value in [(0.5, 16), (1.0, 255), (0.001, 16)]:
        below = sound.thresholds(sigma, max_value)
        u = np.concatenate([below - 1, below, below + 1, [0, 1, 2**63 - 1]])
        pairs = np.stack([u >> 31, (u & 0x7FFFFFFF) << 1], axis=-1).astype(np.uint32)

        got = philox.counts(pairs.reshape(1, -1), philox.guide(below), len(u))

        assert got[0].tolist() == np.searchsorted(below, u, side="right").tolist()


@pytest.mark.parametrize("component", [sound, uniform])
@few
@given(seeds, places, shapes, st.sampled_from([(0.5, 16), (0.25, 255), (1.0, 255)]))
def test_sound_noise_is_whole_steps_added_before_one_division(component, seed, where, shape, grid):
    """By the kernel, and the steps by PyTorch, which other devices run."""
    sigma, max_value = grid
    x = levels(len(where), shape, max_value)
    images, draws = torch.tensor(where).unbind(1)
    below = component.thresholds(sigma, max_value)
    steps = _steps.bucketized(below, seed, images, draws, math.prod(shape)) - len(below) / 2
    k = (x * max_value).round().flatten(1)

    expected = (k + steps).numpy().astype(np.float32) / np.float32(max_value)

    got = draw(component, where, x=x, sigma=sigma, seed=seed, max_value=max_value)
    assert got.flatten(1).numpy().tobytes() == expected.tobytes()


def betrayed(component, k):
    """Share of draws whose low bits show that the image was not of level 1: pixels below 2^-28."""
    draws = torch.arange(500)
    x = torch.full((500, 1, 15, 20), k / 16)
    v = component.noisy(x, 1.0, seed=0, images=draws, draws=draws, max_value=16)
    fine = v.double() * 2.0**28 != (v.double() * 2.0**28).round()
    return float(fine.flatten(1).any(1).double().mean())


def test_low_bits_falsify_certificates_of_float_noise_and_not_of_sound_noise():
    """Let f be whether any pixel has bits below 2^-28. The images 0 and 1/16 are 1.08 sigma apart,
    and f is one constant on all draws of the one: a certificate of 2.4 sigma. It is the other on
    nearly all draws of the other image. Sound noise has the same floats at both.
    """
    assert math.sqrt(300) / 16 < 1.1
    assert betrayed(gaussian, 1) == 0 and betrayed(gaussian, 0) > 0.95
    assert betrayed(sound, 1) == betrayed(sound, 0) == 0
    assert betrayed(uniform, 1) == betrayed(uniform, 0) == 0


def test_pixels_off_the_grid_and_grids_too_fine_for_sigma_are_refused():
    x = levels(3, (1, 8, 8), 255)
    for pixel in (0.3, 1 / 255 + 1e-7, -1 / 255, 256 / 255, math.nan, math.inf):
        x[1, 0, 2, 3] = pixel
        with refused(DataError, "image 8: pixel", "not on the grid 0/255 … 255/255", "gaussian"):
            draw(sound, [(7, 0), (8, 0), (9, 0)], x=x, max_value=255)
    for sigma, max_value in [(0.0, 255), (-1.0, 255), (17.0, 255), (1.0, 65535)]:
        words = "max_value * sigma <= 4096", f"sigma {sigma}", f"max_value {max_value}"
        with refused(DataError, *words):
            sound.thresholds(sigma, max_value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_draws_the_same_steps_and_the_torch_normals():
    x, at = levels(50, (3, 9, 9)).cuda(), torch.arange(50).cuda()
    on_gpu = {"seed": 3, "images": at, "draws": at, "max_value": 16}
    on_cpu = on_gpu | {"images": at.cpu(), "draws": at.cpu()}

    for on in (sound, uniform):
        assert same(on.noisy(x, 0.5, **on_gpu).cpu(), on.noisy(x.cpu(), 0.5, **on_cpu))
    z = streams.gaussian(3, at, at, (3, 9, 9))
    assert same(gaussian.noisy(x, 0.5, **on_gpu), x + 0.5 * z)
    other = gaussian.noisy(x.cpu(), 0.5, **on_cpu)
    torch.testing.assert_close(gaussian.noisy(x, 0.5, **on_gpu).cpu(), other)
