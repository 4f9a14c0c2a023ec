"""What benchmarks count, and what pages say that they found; speed is measured, not tested."""

import numpy as np
import pytest
from scipy.stats import norm
from workspace import ROOT

from benchmarks import engine, futility, router


def test_operations_are_two_for_each_multiply_add():
    """Of the tiny ViT at 8 x 8, all 2 + 16 tokens in all four blocks, without its head."""
    width, tokens, patches = 64, 18, 16
    block = 12 * width**2 * tokens + 2 * width * tokens**2
    shape = {"size": "tiny", "image_size": 8, "patch_size": 2, "channels": 1}

    assert engine.vit_operations(shape) == 2 * (4 * block + patches * 2**2 * width)


@pytest.mark.parametrize("precision", engine.PRODUCTS)
def test_onnx_runtime_has_products_of_each_type(precision):
    assert 0 < engine.onnx_peak(precision, threads=1, size=64) < float("inf")


@pytest.mark.parametrize("name", ["grid", "spending"])
def test_dividing_alpha_costs_what_the_page_says(name: str):
    rules = futility.bounds_at(1.0, n=1_000, alpha=futility.ALPHA)
    chances = [f"{chance:.3f}" for chance in futility.worst(rules[name], rules["none"])]

    page = " ".join((ROOT / "docs/certifying.md").read_text().split())
    said = page.replace(" has a power of", " of")
    assert f"`{name}` of {chances[0]} where `none` has {chances[1]}" in said


def test_a_choice_between_two_half_spaces_stays_within_its_radius():
    """Where probabilities are known, nothing within the radius is answered otherwise."""
    sigmas, tau = (0.5, 0.25), 0.7

    def answer(x):
        p, q = norm.cdf(x / sigmas[0]), norm.cdf((x - 0.2) / sigmas[1])
        return np.where(np.maximum(p, 1 - p) >= tau, x > 0, x > 0.2), p, q

    x = np.linspace(-1.0, 1.0, 400)  # not the boundary itself
    here, p, q = answer(x)
    largest = np.maximum(p, 1 - p)
    found = router.radius(np.c_[largest, largest], np.maximum(q, 1 - q), tau=tau, sigmas=sigmas)
    steps = np.linspace(-0.999, 0.999, 41)
    assert all((answer(x + found.clip(min=0) * step)[0] == here).all() for step in steps)
    assert (found > 0).mean() > 0.95
    # the control: radii that are a tenth larger
    assert not all((answer(x + 1.1 * found * step)[0] == here).all() for step in steps)
