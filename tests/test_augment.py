"""Augmentations: what they keep, what they do, and how a bad declaration is refused."""

import pytest
import torch
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rrcm import augment
from rrcm.errors import ConfigError

STILL = {"rotate": 0.0, "translate": 0.0, "scale": 0.0, "shear": 0.0}
amounts = st.floats(0.0, 0.9)
affines = st.fixed_dictionaries({**dict.fromkeys(STILL, amounts), "rotate": st.floats(0.0, 180.0)})
entries = st.one_of(
    st.builds(lambda constants: {"affine": constants}, affines),
    st.builds(lambda amount: {"gain": {"amount": amount}}, amounts),
)


def build(*declared):
    return augment.build([*declared], where="recipes: augment")


def images(batch=4, channels=2, side=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(batch, channels, side, side, generator=generator)


@pytest.fixture
def at_most(monkeypatch):
    """Every draw is as large as it may be."""
    monkeypatch.setattr(augment, "_uniform", lambda x, amount: torch.full((len(x),), amount))


@few
@given(st.lists(entries, max_size=3), st.integers(1, 5), st.integers(1, 3), st.integers(1, 12))
def test_shape_and_range_are_kept(declared, batch, channels, side):
    x = images(batch, channels, side).round()  # black and white, the ends of the range

    y = build(*declared)(x)

    assert y.shape == x.shape and y.dtype == x.dtype
    assert (y >= 0).all() and (y <= 1 + 1e-6).all()  # interpolation may round above white


@pytest.mark.parametrize("entry", [{"affine": STILL}, {"gain": {"amount": 0.0}}], ids=str)
def test_zero_amounts_change_nothing(entry):
    torch.testing.assert_close(build(entry)(images()), images(), atol=1e-5, rtol=0)


def test_no_augmentation_is_the_identity():
    assert build()(x := images()) is x


@pytest.mark.parametrize(
    "entry",
    [*({"affine": STILL | {knob: 0.3}} for knob in STILL), {"gain": {"amount": 0.3}}],
    ids=str,
)
def test_every_amount_turns_something_for_each_image_by_itself(entry):
    """Equal images come out different: each has a draw of its own."""
    torch.manual_seed(0)
    x = images(1).expand(6, -1, -1, -1)

    y = build(entry)(x)

    assert len(y.unique(dim=0)) == 6
    assert all(not torch.allclose(one, other, atol=1e-4) for one, other in zip(x, y, strict=True))


def test_an_image_never_sees_its_neighbours():
    transform, x = build({"affine": STILL | {"rotate": 30.0}}, {"gain": {"amount": 0.3}}), images()
    others = x.clone()
    others[1:] = images(seed=1)[1:]

    one, two = (torch.manual_seed(0) and transform(batch) for batch in (x, others))

    assert torch.equal(one[0], two[0])
    assert not torch.equal(one[1], two[1])


def test_rotation_by_a_right_angle_is_exact(at_most):
    y = build({"affine": STILL | {"rotate": 90.0}})(images())

    torch.testing.assert_close(y, images().rot90(1, (2, 3)), atol=1e-5, rtol=0)


def test_translation_by_a_share_moves_whole_pixels_and_brings_in_black(at_most):
    """A quarter of 8 pixels is 2, along both axes."""
    expected = torch.zeros_like(images())
    expected[..., :6, :6] = images()[..., 2:, 2:]

    y = build({"affine": STILL | {"translate": 0.25}})(images())

    torch.testing.assert_close(y, expected, atol=1e-5, rtol=0)


def test_scale_is_added_to_one(at_most):
    """1 + 1 shows twice the field: pixels are means of 2 x 2, in a frame of black."""
    expected = torch.zeros_like(images())
    expected[..., 2:6, 2:6] = torch.nn.functional.avg_pool2d(images(), 2)

    y = build({"affine": STILL | {"scale": 1.0}})(images())

    torch.testing.assert_close(y, expected, atol=1e-5, rtol=0)


def test_shear_moves_each_row_by_its_height(at_most):
    """Shear 2 moves row r of 8 by 2 r - 7 pixels."""
    expected = torch.zeros_like(images())
    for r in range(8):
        for c in range(8):
            if 0 <= c + 2 * r - 7 < 8:
                expected[..., r, c] = images()[..., r, c + 2 * r - 7]

    y = build({"affine": STILL | {"shear": 2.0}})(images())

    torch.testing.assert_close(y, expected, atol=1e-5, rtol=0)


def test_gain_multiplies_and_stays_in_range(at_most):
    y = build({"gain": {"amount": 0.5}})(images())

    torch.testing.assert_close(y, (1.5 * images()).clamp(max=1))


def test_augmentations_apply_in_the_declared_order(at_most):
    x = torch.full((1, 1, 2, 2), 0.6)

    brighter_first = build({"gain": {"amount": 1.0}}, {"gain": {"amount": -0.5}})(x)
    darker_first = build({"gain": {"amount": -0.5}}, {"gain": {"amount": 1.0}})(x)

    assert brighter_first.unique().tolist() == pytest.approx([0.5])
    assert darker_first.unique().tolist() == pytest.approx([0.6])


def test_draws_are_uniform_between_plus_and_minus_the_amount():
    torch.manual_seed(0)
    y = build({"gain": {"amount": 0.4}})(torch.full((5000, 1, 1, 1), 0.5))

    assert stats.kstest(y.flatten(), stats.uniform(0.3, 0.4).cdf).pvalue > 0.01


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("gain", "recipes: augment[1]: expected one name with its constants, got 'gain'"),
        ({}, "recipes: augment[1]: expected one name with its constants, got {}"),
        (
            {"gian": {"amount": 0.1}},
            "recipes: augment[1]: no augmentation 'gian', only affine, gain. Did you mean 'gain'?",
        ),
        (
            {"gain": {"amuont": 0.1}},
            "recipes: augment[1].gain: unknown key 'amuont'. Did you mean 'amount'?",
        ),
        ({"gain": {}}, "recipes: augment[1].gain: missing amount"),
        ({"gain": None}, "recipes: augment[1].gain: expected a mapping, got None"),
        ({"gain": {"amount": "x"}}, "recipes: augment[1].gain.amount: expected float, got 'x'"),
    ],
    ids=str,
)
def test_a_bad_declaration_is_named_by_its_place(entry, message):
    with pytest.raises(ConfigError) as error:
        build({"gain": {"amount": 0.1}}, entry)

    assert str(error.value) == message
