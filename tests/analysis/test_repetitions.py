"""What several seeds say together: intervals cover, and only what is comparable is compared."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from builders import certificates
from scipy.stats import norm
from scipy.stats import t as student
from statsmodels.stats.anova import anova_lm

from rrcm.analysis import repetitions, report
from rrcm.analysis.entries import Entry
from rrcm.analysis.estimation import intervals
from rrcm.analysis.presentation import tables

RADII = [0.0, 0.25, 0.5]


def entry(method, seed, radius, *, sigma=0.5, predict=None, **settings) -> Entry:
    table = certificates(predict or [0] * len(radius), radius)
    name = f"vit-{method}-{'-'.join(map(str, settings.values())) or 'all'}-seed{seed}-e050"
    return Entry(
        name=name,
        model="vit",
        method=method,
        sigma=sigma,
        sigma_train=sigma,
        seed=seed,
        table=table,
        alpha=0.001,
        settings={"run.method": method, "recipe.labels": 1.0} | settings,
    )


def random(rng, method, seed, share, **settings) -> Entry:
    return entry(
        method, seed, rng.choice([0.1, 0.6], 40, p=[1 - share, share]).tolist(), **settings
    )


def test_the_interval_is_that_of_the_mean_squares_of_a_table_of_variance():
    """Mean squares as statsmodels finds them, by least squares."""
    rng = np.random.default_rng(3)
    values = rng.normal(size=(4, 30)) + 2 * rng.normal(size=(4, 1)) + rng.normal(size=30)
    long = pd.DataFrame(
        {"d": values.ravel(), "k": np.repeat(range(4), 30), "i": np.tile(range(30), 4)}
    )
    squares = anova_lm(smf.ols("d ~ C(k) + C(i)", long).fit())
    a, b, e = (squares["sum_sq"] / squares["df"])[["C(k)", "C(i)", "Residual"]]
    assert a > b > e
    found, p = intervals.crossed_mean(values, confidence=0.9)

    assert found.value == pytest.approx(values.mean())
    for level, half in ((0.1, found.high - found.value), (p, abs(found.value))):
        seeds, images = student.isf(level / 2, 3), student.isf(level / 2, 29)
        assert half == pytest.approx(np.sqrt((seeds**2 * a + images**2 * (b - e)) / 120))
    assert found.value - found.low == pytest.approx(found.high - found.value)


def test_it_is_never_shorter_than_that_of_these_seeds_on_other_images():
    """Seeds that happen to agree in their means say nothing against other images."""
    row = np.array([1.0, 0.0, 0.0, 1.0, -1.0, 0.0])
    found, _ = intervals.crossed_mean(np.stack([row, row[::-1], np.roll(row, 2)]), confidence=0.95)

    means = (row + row[::-1] + np.roll(row, 2)) / 3
    half = student.isf(0.025, 5) * means.std(ddof=1) / np.sqrt(6)
    assert found.high - found.value == pytest.approx(half)


@pytest.mark.parametrize("scale", [0.0, 1e9])
def test_p_is_one_at_no_difference_and_never_zero_by_rounding(scale):
    values = np.random.default_rng(0).normal(size=(3, 20))
    values += scale - values.mean()

    assert intervals.crossed_mean(values, confidence=0.95)[1] == pytest.approx(
        1 if scale == 0 else 1e-12, abs=1e-13
    )


@pytest.mark.parametrize(("of_seeds", "of_images"), [(0.0, 0.0), (0.1, 1.0), (0.5, 0.0)])
def test_the_interval_covers_the_mean_of_other_seeds_and_images(of_seeds, of_images):
    """Differences -1, 0 and 1 of 3 seeds and 100 images, with luck of either; 500 times."""
    rng = np.random.default_rng(17)
    threshold, tries, missed = 0.8, 500, 0
    total = np.sqrt(1 + of_seeds**2 + of_images**2)
    true = norm.sf(threshold - 0.2, scale=total) - norm.cdf(-threshold - 0.2, scale=total)
    for _ in range(tries):
        latent = 0.2 + rng.normal(size=(3, 100))
        latent += of_seeds * rng.normal(size=(3, 1)) + of_images * rng.normal(size=100)
        values = (latent > threshold).astype(float) - (latent < -threshold)
        found, _ = intervals.crossed_mean(values, confidence=0.95)
        missed += not found.low <= true <= found.high

    assert missed / tries < 0.06 + 3 * np.sqrt(0.06 * 0.94 / tries)  # Student's t is approximate


def test_equal_values_say_nothing_about_others():
    """Two images that only A certifies, with two seeds, were a claim at p = 0."""
    for value in (0.0, 1.0):
        found, p = intervals.crossed_mean(np.full((2, 2), value), confidence=0.95)
        assert (found.value, p) == (value, 1) and np.isnan([found.low, found.high]).all()
        alone = intervals.mean(np.full(5, value), confidence=0.95)
        assert tables.interval(alone.low, alone.high, places=3) == "[?, ?]"
    with pytest.raises(ValueError, match="two seeds and two images"):
        intervals.crossed_mean(np.ones((1, 5)), confidence=0.95)


def test_entries_that_differ_in_the_seed_alone_belong_together():
    rng = np.random.default_rng(0)
    found = [random(rng, m, seed, 0.5) for m in ("rrcm", "gaussian") for seed in (2, 0, 1)]
    found.append(random(rng, "rrcm", 0, 0.5, **{"recipe.epochs": 5}))  # alone
    found.append(entry("rrcm", 3, [0.1] * 39))  # other images

    groups = repetitions.repeated(found[:-1])

    assert [*groups] == ["vit-rrcm-all-e050", "vit-gaussian-all-e050"]
    assert [e.seed for e in groups["vit-rrcm-all-e050"]] == [0, 1, 2]
    assert [*repetitions.repeated(found)] == ["vit-gaussian-all-e050"]


def test_numbers_are_those_of_the_seeds():
    found = [entry("rrcm", k, [0.3] * n + [0.1] * (10 - n)) for k, n in enumerate((2, 4, 9))]

    numbers = repetitions.accuracy(repetitions.repeated(found), radii=RADII)

    row = numbers[numbers["radius"] == 0.25].iloc[0]
    assert (row["seeds"], row["mean"]) == (3, pytest.approx(0.5))
    assert row["sd"] == pytest.approx(np.std([0.2, 0.4, 0.9], ddof=1))
    assert row["acr"] == pytest.approx(np.mean([0.14, 0.18, 0.28]))
    assert repetitions.accuracy_table(numbers)["ACR"][0] == "0.200 ± 0.072"
    early = [dataclasses.replace(one, table=one.table.assign(stop="certified")) for one in found]
    numbers = repetitions.accuracy(repetitions.repeated(early), radii=RADII)
    assert repetitions.accuracy_table(numbers)["ACR"][0] == "≥ 0.200 ± 0.072"


def test_only_methods_with_the_same_labels_and_sigma_are_compared():
    rng = np.random.default_rng(1)
    found = [
        random(rng, method, seed, share, **{"recipe.labels": labels})
        for method, share in (("rrcm", 0.6), ("gaussian", 0.3))
        for labels in (1.0, 0.1)
        for seed in range(3)
    ]
    found += [random(rng, "gaussian", seed, 0.3, **{"recipe.epochs": 9}) for seed in range(3)]
    groups = repetitions.repeated(found)

    apart = repetitions.differences(groups, radii=RADII, confidence=0.95)

    pairs = set(zip(apart["first"], apart["second"], strict=True))
    assert pairs == {
        ("vit-rrcm-1.0-e050", "vit-gaussian-1.0-e050"),
        ("vit-rrcm-0.1-e050", "vit-gaussian-0.1-e050"),
        ("vit-rrcm-1.0-e050", "vit-gaussian-9-e050"),
    }
    row = apart.iloc[0]  # at r = 0 all are certified, and nothing can be tested
    assert row["radius"] == 0.25
    first, second = (
        np.mean([(e.table["radius"] >= 0.25).mean() for e in groups[f"vit-{name}-1.0-e050"]])
        for name in ("rrcm", "gaussian")
    )
    assert row["difference"] == pytest.approx(first - second)
    assert row["p"] <= row["p_holm"] <= 1 and row["low"] < row["difference"] < row["high"]


def test_the_report_has_seeds_where_there_are_some(tmp_path, undrawn):
    rng = np.random.default_rng(2)
    settings = {"radii": RADII, "confidence": 0.95, "subject": "images"}
    found = [random(rng, m, k, s) for m, s in (("rrcm", 0.7), ("gaussian", 0.4)) for k in range(3)]
    report.write(found, tmp_path / "with", **settings)
    report.write(found[::3], tmp_path / "without", **settings)

    page = (tmp_path / "with/index.html").read_text()
    assert "Over seeds" in page and "This is about trainings with other seeds" in page
    assert len(pd.read_csv(tmp_path / "with/seeds.csv")) == 2 * len(RADII)
    assert not pd.read_csv(tmp_path / "with/seeds_compared.csv").empty
    assert "Over seeds" not in (tmp_path / "without/index.html").read_text()
    assert not (tmp_path / "without/seeds.csv").exists()
