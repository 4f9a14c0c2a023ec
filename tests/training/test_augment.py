"""Augmentations: what they keep, what they do, and how a bad declaration is refused."""

import itertools
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy import ndimage, stats
from timm.data import RandomResizedCropAndInterpolation
from timm.data.auto_augment import rand_augment_transform
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from rrcm.config.sections import Mix
from rrcm.core.errors import ConfigError
from rrcm.training.engine.draws import Draws
from rrcm.training.engine.inputs import augment, transforms

STILL = {"rotate": 0.0, "translate": 0.0, "scale": 0.0, "shear": 0.0}
COLOURS = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.2, "hue": 0.1, "p": 0.8}
CROP = {"scale": [0.08, 1.0], "ratio": [0.75, 1.3333333333333333]}
POLICY = "rand-m9-mstd0.5-inc1"
amounts = st.floats(0.0, 0.9)
affines = st.fixed_dictionaries({**dict.fromkeys(STILL, amounts), "rotate": st.floats(0.0, 180.0)})
entries = st.one_of(
    st.builds(lambda constants: {"affine": constants}, affines),
    st.builds(lambda amount: {"gain": {"amount": amount}}, amounts),
    st.builds(lambda p: {"flip": {"p": p}}, amounts),
    st.builds(lambda p: {"grey": {"p": p}}, amounts),
    st.builds(lambda pad: {"crop": {"pad": pad}}, st.integers(0, 5)),
    st.builds(lambda p: {"jitter": COLOURS | {"p": p}}, amounts),
    st.builds(lambda p, top: {"blur": {"sigma": [0.1, 0.1 + top], "p": p}}, amounts, amounts),
    st.builds(lambda p, t: {"solarize": {"threshold": t, "p": p}}, amounts, amounts),
    st.just({"resized_crop": CROP}),
)


class Same(Draws):
    """Every uniform number is ``u``, every whole number ``n``."""

    def __init__(self, u=0.0, n=0):
        self.u, self.n, self.law = u, n, "gaussian"

    def uniform(self, x, *shape):
        return torch.full((len(x), *shape), self.u, dtype=x.dtype)

    def integer(self, high):
        return self.n


MOST = Same(1.0)  # every amount is as large as it may be


def build(*declared, encoded=False):
    return augment.build([*declared], where="recipes: augment", encoded=encoded)


def images(batch=4, channels=3, side=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(batch, channels, side, side, generator=generator)


def picture(width=50, height=30, seed=0):
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


@few
@given(
    st.lists(entries, max_size=3),
    st.integers(1, 5),
    st.sampled_from([1, 3]),
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
)
def test_shape_and_range_are_kept(declared, batch, channels, sides):
    x = images(batch, channels, 12)[..., : sides[0], : sides[1]].round()  # black and white

    y = build(*declared)(x, Draws(0, 0))

    assert y.shape == x.shape and y.dtype == x.dtype
    assert (y >= 0).all() and (y <= 1).all()


SOME = [
    {"affine": dict.fromkeys(STILL, 0.3)},
    {"gain": {"amount": 0.3}},
    {"crop": {"pad": 30}},
    {"resized_crop": CROP},
    {"jitter": dict.fromkeys(COLOURS, 0.3) | {"p": 1.0}},
    {"blur": {"sigma": [0.5, 2.0], "p": 1.0}},
]


def test_p_is_the_share_of_images_that_change_and_a_flip_mirrors_left_and_right():
    x = images(1).expand(1000, -1, -1, -1)
    y = build({"flip": {"p": 0.3}})(x, Draws(0, 0))
    changed = (y != x).flatten(1).any(dim=1)

    assert torch.equal(y[changed], x.flip(3)[changed])

    assert stats.binomtest(int(changed.sum()), 1000, 0.3).pvalue > 0.01


@pytest.mark.parametrize("entry", [*SOME, {"flip": {"p": 0.5}}], ids=str)
def test_an_image_depends_on_its_place_in_the_batch_and_on_no_other(entry):
    x = images(6)
    whole = build(entry)(x, Draws(0, 0))

    parts = [build(entry)(x[i : i + 3], Draws(0, 0, first=i)) for i in (0, 3)]

    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-6, rtol=0)


def sheared(x):
    """Row r of 8 moved by r - 3.5 pixels: halfway between two."""
    wide = F.pad(x, [8, 8])
    rows = [(wide[..., r, r + 4 : r + 12] + wide[..., r, r + 5 : r + 13]) / 2 for r in range(8)]
    return torch.stack(rows, dim=2)


@pytest.mark.parametrize(
    ("knob", "amount", "expected"),
    [
        ("rotate", 90.0, lambda x: x.rot90(1, (2, 3))),
        ("translate", 0.25, lambda x: F.pad(x[..., 2:, 2:], [0, 2, 0, 2])),  # a quarter of 8 pixels
        ("scale", 1.0, lambda x: F.pad(F.avg_pool2d(x, 2), [2, 2, 2, 2])),  # added to 1
        ("shear", 1.0, sheared),
    ],
)
def test_affine_maps_are_exact_and_bring_in_black(knob, amount, expected):
    y = build({"affine": STILL | {knob: amount}})(images(), MOST)

    torch.testing.assert_close(y, expected(images()), atol=1e-5, rtol=0)


def test_crop_shifts_by_whole_pixels_uniformly_in_a_frame_of_black():
    """Every shift is found by hand, in the padded image; all 25 are as likely."""
    x = images(2000, 1, 3) + 0.1
    padded = F.pad(x, [2, 2, 2, 2])
    windows = padded.unfold(2, 3, 1).unfold(3, 3, 1)[:, 0].flatten(1, 2)  # [B, 25, 3, 3]

    same = (build({"crop": {"pad": 2}})(x, Draws(0, 0)) == windows).all(dim=(2, 3))  # [B, 25]

    assert (same.sum(dim=1) == 1).all()
    assert stats.chisquare(same.sum(dim=0).numpy()).pvalue > 0.01


def ramps(batch, height=16, width=32):
    """Two channels: how far right, and how far down, a pixel's centre is, in shares."""
    right = ((torch.arange(width) + 0.5) / width).expand(height, width)
    down = ((torch.arange(height) + 0.5) / height)[:, None].expand(height, width)
    return torch.stack([right, down]).expand(batch, 2, height, width)


def rectangles(constants, batch=2000, height=16, width=32):
    """Left, top, width and height of what a crop shows, in shares of the image [B] each.

    A ramp stays one under linear interpolation; away from the border, where it ends.
    """
    y = build({"resized_crop": constants})(ramps(batch, height, width), Draws(0, 0))
    step_x = y[:, 0, 8, width // 2] - y[:, 0, 8, width // 2 - 1]
    step_y = y[:, 1, height // 2, 8] - y[:, 1, height // 2 - 1, 8]
    wide, high = step_x * width, step_y * height
    left = y[:, 0, 8, width // 2] - step_x * (width // 2 + 0.5)
    top = y[:, 1, height // 2, 8] - step_y * (height // 2 + 0.5)
    return left, top, wide, high


def test_resized_crops_have_the_areas_shapes_and_places_asked_for():
    left, top, wide, high = rectangles({"scale": [0.1, 0.3], "ratio": [0.5, 2.0]})
    area, shape = wide * high, (wide * 32) / (high * 16)  # the picture is twice as wide as high

    assert stats.kstest(area, stats.uniform(0.1, 0.2).cdf).pvalue > 0.01
    assert stats.kstest(shape.log2(), stats.uniform(-1, 2).cdf).pvalue > 0.01
    for start, size in ((left, wide), (top, high)):
        assert stats.kstest(start / (1 - size), stats.uniform().cdf).pvalue > 0.01


def test_resized_crops_that_never_fit_are_the_whole_image():
    x = ramps(5)
    never = {"resized_crop": {"scale": [1.0, 1.0], "ratio": [30.0, 40.0]}}

    torch.testing.assert_close(build(never)(x, Draws(0, 0)), x, atol=1e-6, rtol=0)


class ThenChosen(Same):
    """Four amounts of ``u``, then a coin that falls on the right side."""

    def uniform(self, x, *shape):
        amount = super().uniform(x, *shape)
        self.left = getattr(self, "left", 4) - 1
        return amount if self.left >= 0 else 0 * amount


def test_jitter_is_torchvision_s_in_each_order():
    """Torchvision has the formulas (its luma is 0.9999 of white); numbers name their orders."""
    u, strong = 0.8, {"brightness": 0.9, "contrast": 0.8, "saturation": 0.7, "hue": 0.4}
    amount = {name: (2 * u - 1) * most for name, most in strong.items()}
    changes = [
        lambda x: functional.adjust_brightness(x, 1 + amount["brightness"]),
        lambda x: functional.adjust_contrast(x, 1 + amount["contrast"]),
        lambda x: functional.adjust_saturation(x, 1 + amount["saturation"]),
        lambda x: functional.adjust_hue(x, amount["hue"]),
    ]
    jitter = transforms.Jitter(**strong, p=1.0)
    expected = []
    for order in itertools.permutations(changes):
        x = images()
        for change in order:
            x = change(x)
        expected.append(x)

    found = [jitter(images(), ThenChosen(u, n)) for n in range(transforms.ORDERS)]

    same = torch.tensor(
        [[torch.allclose(one, other, atol=1e-3) for other in found] for one in expected]
    )
    assert same.any(dim=0).all(), "an order of ours is none of theirs"
    assert same.any(dim=1).all(), "an order of theirs is never drawn"


def test_grey_is_luma_in_all_channels():
    y = build({"grey": {"p": 1.0}})(images(), Draws(0, 0))

    expected = functional.rgb_to_grayscale(images(), num_output_channels=3)
    torch.testing.assert_close(y, expected, atol=1e-4, rtol=0)


def test_blur_is_gaussian_and_does_not_darken_the_border():
    """Against scipy's filter, with its weights cut off nowhere and divided by their sum."""
    sigma, x = 1.0, images(1, 1, 24).double()[0, 0].numpy()
    options = {"sigma": sigma, "mode": "constant", "truncate": 30 / sigma}
    weight = ndimage.gaussian_filter(np.ones_like(x), **options)
    expected = ndimage.gaussian_filter(x, **options) / weight

    y = build({"blur": {"sigma": [sigma, sigma], "p": 1.0}})(
        torch.from_numpy(x)[None, None], Draws(0, 0)
    )

    np.testing.assert_allclose(y[0, 0].numpy(), expected, atol=1e-9)


def test_solarize_inverts_from_the_threshold_up():
    x = torch.tensor([0.0, 0.4, 0.3, 1.0]).view(1, 1, 2, 2)

    y = build({"solarize": {"threshold": 0.4, "p": 1.0}})(x, Draws(0, 0))

    assert y.flatten().tolist() == pytest.approx([0.0, 0.6, 0.3, 0.0])


def test_augmentations_apply_in_the_declared_order():
    x = torch.full((1, 1, 2, 2), 0.6)

    brighter, inverted = {"gain": {"amount": 1.0}}, {"solarize": {"threshold": 0.5, "p": 1.0}}

    assert build(brighter, inverted)(x, Same(0.75)).unique().tolist() == pytest.approx([0.1])
    assert build(inverted, brighter)(x, Same(0.75)).unique().tolist() == pytest.approx([0.6])


def test_draws_are_uniform_between_plus_and_minus_the_amount():
    y = build({"gain": {"amount": 0.4}})(torch.full((5000, 1, 1, 1), 0.5), Draws(0, 0))

    assert stats.kstest(y.flatten(), stats.uniform(0.3, 0.4).cdf).pvalue > 0.01


# What is done to single pictures


def test_a_picture_s_crop_is_torchvision_s_of_the_same_rectangle():
    """And that is timm's of the same seed; of a picture however small."""
    crop = transforms.ResizedCrop(**CROP).on_picture
    with transforms.global_seed(random.Random(3).randrange(transforms.SEEDS)):
        box = RandomResizedCropAndInterpolation.get_params(picture(), CROP["scale"], CROP["ratio"])
    bicubic = InterpolationMode.BICUBIC
    expected = functional.resized_crop(picture(), *box, [12, 16], bicubic)

    found = crop(picture(), (16, 12), random.Random(3))

    assert found.tobytes() == expected.tobytes()
    assert all(crop(picture(1, 1), (4, 4), random.Random(i)).size == (4, 4) for i in range(20))


def test_randaugment_is_timm_s_of_the_same_seed():
    change, rng = transforms.RandAugment(policy=POLICY).on_picture, random.Random(5)
    found = change(picture(), (50, 30), rng)
    seed = random.Random(5).randrange(transforms.SEEDS)
    theirs = rand_augment_transform(POLICY, {"translate_const": int(0.45 * 30)})
    random.seed(seed)
    np.random.seed(seed)

    assert found.tobytes() == theirs(picture()).tobytes()
    assert rng.random() != random.Random(5).random()


# Mixing


def mixed(x, y, *, step=0, first=0, **changed):
    still = {"mixup": 0.0, "cutmix": 0.0, "prob": 1.0, "switch": 0.5, "smoothing": 0.0}
    return augment.Mixer(Mix(**still | changed), 5)(x, y, Draws(0, step, first=first))


LABELS = torch.tensor([0, 1, 2, 3, 4, 0])


def test_smoothing_alone_gives_each_class_its_share():
    x = images(6)
    found, p = mixed(x, LABELS, smoothing=0.1)

    assert found is x
    expected = torch.full((6, 5), 0.02).scatter(1, LABELS[:, None], 0.92)
    torch.testing.assert_close(p, expected)


def neighbours(t):
    return t.view(3, 2, *t.shape[1:]).flip(1).flatten(0, 1)


def test_mixup_mixes_images_and_labels_of_neighbours_by_one_share():
    x, hot = images(6), F.one_hot(LABELS, 5).float()
    found, p = mixed(x.clone(), LABELS, mixup=0.8)
    share = p[0, 0]

    assert 0 < share < 1
    torch.testing.assert_close(p, share * hot + (1 - share) * neighbours(hot))
    torch.testing.assert_close(found, share * x + (1 - share) * neighbours(x))


def test_cutmix_pastes_a_rectangle_of_the_neighbour_and_counts_its_pixels():
    x, hot = images(6), F.one_hot(LABELS, 5).float()
    for step in range(6):
        found, p = mixed(x.clone(), LABELS, cutmix=1.0, step=step)
        pasted = (found != x).all(dim=1)  # [B, H, W]

        assert torch.equal(torch.where(pasted[:, None], neighbours(x), x), found)
        share = 1 - pasted.float().mean(dim=(1, 2))[:, None]
        torch.testing.assert_close(p, share * hot + (1 - share) * neighbours(hot))
        rows, columns = pasted[0].any(dim=1), pasted[0].any(dim=0)
        assert torch.equal(pasted, (rows[:, None] & columns).expand(6, -1, -1))


def test_devices_that_share_a_batch_mix_what_one_would():
    x = images(6)
    for step in range(4):
        setting = {"mixup": 0.8, "cutmix": 1.0, "smoothing": 0.1, "step": step}
        whole = mixed(x.clone(), LABELS, **setting)
        parts = [
            mixed(x[rows].clone(), LABELS[rows], first=rows.start, **setting)
            for rows in (slice(0, 2), slice(2, 6))
        ]
        for part, all_ in zip(zip(*parts, strict=True), whole, strict=True):
            torch.testing.assert_close(torch.cat(part), all_)
    assert torch.equal(x, images(6)), "the batch of the caller"


def test_an_odd_number_cannot_be_paired():
    with pytest.raises(ConfigError, match=r"^batch_size: mixing pairs images, and 5 on a device"):
        mixed(images(5), LABELS[:5], mixup=1.0)


# Declarations

NAMES = "affine, blur, crop, flip, gain, grey, jitter, randaugment, resized_crop, solarize"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("gain", "[1]: expected one name with its constants, got 'gain'"),
        (
            {"gian": {"amount": 0.1}},
            f"[1]: no augmentation 'gian', only {NAMES}. Did you mean 'gain'?",
        ),
        ({"gain": {"amount": "x"}}, "[1].gain.amount: expected float, got 'x'"),
        (
            {"resized_crop": CROP | {"scale": [0.5, 1.5]}},
            "[1].resized_crop.scale: at most the whole image, 1, got [0.5, 1.5]",
        ),
        (
            {"blur": {"sigma": [0.0, 1.0], "p": 0.5}},
            "[1].blur.sigma: expected [lo, hi] with 0 < lo <= hi <= 16384, got [0.0, 1.0]",
        ),
        (
            {"randaugment": {"policy": "rand-m9-foo"}},
            "[1].randaugment.policy: 'rand-m9-foo' is not of the form rand-m9-n2-mstd0.5-inc1",
        ),
        (
            {"randaugment": {"policy": POLICY}},
            "[1]: randaugment works on single pictures; put it before gain, which works on batches",
        ),
    ],
    ids=str,
)
def test_a_bad_declaration_is_named_by_its_place(entry, message):
    with pytest.raises(ConfigError) as error:
        build({"gain": {"amount": 0.1}}, entry)

    assert str(error.value) == f"recipes: augment{message}"
