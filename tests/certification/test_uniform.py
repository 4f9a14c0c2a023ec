"""Uniform noise on the pixel grid and its L1 certificate: law, theorem, guarantee, refusals."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from builders import header, random_votes, refused
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rrcm.certification import certify
from rrcm.certification.certificates import _top, cohen, uniform
from rrcm.certification.distributions import uniform as noise
from rrcm.certification.stopping import none
from rrcm.certification.votes import records
from rrcm.certification.votes.counts import ABSTAIN, Claim, ImageVotes
from rrcm.cli.commands import tables
from rrcm.config.defaults import DRAWS
from rrcm.core.errors import ConfigError, DataError
from rrcm.training.engine.draws import Draws, uniform_of

ONE = 1 / math.sqrt(3)  # sigma of lambda = 1
GOLDEN = [  # votes, draws, R at lambda = 1 and alpha = .001
    (100, 100, 0.8665086016),
    (1000, 1000, 0.9862320968),
    (9805, 10_000, 0.9516891264),
    (100_000, 100_000, 0.9998618497),
    (97_844, 100_000, 0.953966601),
    (60_000, 100_000, 0.1904020946),
    (530, 1000, 0.0),
]


def certified(by, hits, n, *, sigma, alpha=0.001):
    votes = ImageVotes(
        idx=0, selection=np.array([1, 0]), draws=(n,), counts=np.array([[hits, n - hits]])
    )
    rule = none.Rule(none.Config(), n=n, claim=Claim(certificate=by, sigma=sigma, alpha=alpha))
    return by.certify(votes, rule, sigma=sigma, alpha=alpha)


@pytest.mark.parametrize(("hits", "n", "wanted"), GOLDEN)
def test_golden_radii(hits, n, wanted):
    """From Clopper-Pearson and 2 lambda (p - 1/2), elsewhere; never above lambda."""
    got = certified(uniform, hits, n, sigma=ONE)

    assert got.radius == pytest.approx(wanted, rel=1e-8) and got.radius < 1
    assert (got.label == ABSTAIN) == (wanted == 0)


def draws(sigma, max_value, k, count, pixels=1):
    x = torch.full((count, 1, 1, pixels), k / max_value, dtype=torch.float32)
    at = {"images": torch.zeros(count, dtype=torch.int64), "draws": torch.arange(count)}
    return noise.noisy(x, sigma, seed=7, **at, max_value=max_value).flatten(1).double().numpy()


@pytest.mark.parametrize(("sigma", "max_value", "q"), [(0.25, 16, 14), (15 / (32 * 3**0.5), 16, 15),
                                                       (ONE / 2, 255, 255)])  # fmt: skip
def test_each_of_q_steps_around_a_pixel_is_as_likely(sigma, max_value, q):
    """The fewest steps that are 2 lambda wide or more; an even number lies between levels."""
    seen = draws(sigma, max_value, max_value // 2, 20_000)
    steps = np.rint(2 * (seen * max_value - max_value // 2)).astype(int).ravel()

    values, counts = np.unique(steps, return_counts=True)
    assert len(noise.thresholds(sigma, max_value)) == q - 1 >= 2 * 3**0.5 * sigma * max_value - 1.01
    assert values.tolist() == list(range(-(q - 1), q, 2))
    assert stats.chisquare(counts).pvalue > 1e-4
    assert noise.slack(sigma, pixels=3072, max_value=max_value) < 1e-12


def test_the_noise_has_not_moved():
    """Golden of this code: votes on disk were drawn with it, so a change needs a new NAME."""
    assert draws(0.25, 16, 8, 4).ravel().tolist() == [0.90625, 0.21875, 0.34375, 0.53125]


def test_a_grid_that_is_too_fine_is_refused():
    for sigma in (0.0, 300.0):
        with refused(DataError, "steps of the pixel grid", f"sigma {sigma}"):
            noise.thresholds(sigma, 255)


@few
@given(st.integers(2, 4), st.integers(1, 3), st.integers(0, 2**30), st.data())
def test_no_function_of_the_grid_changes_by_more_than_the_theorem_says(q, pixels, seed, data):
    """Whatever images have a class: counted over all noise, at two images of the grid."""
    delta = data.draw(st.lists(st.integers(-q, q), min_size=pixels, max_size=pixels))
    box = [*itertools.product(range(q), repeat=pixels)]
    here, there = ({tuple(np.add(z, by)) for z in box} for by in ([0] * pixels, delta))
    rng = np.random.default_rng(seed)
    chosen = {image for image in here | there if rng.random() < 0.5}

    for of in (chosen, here, here - there):  # the last is the worst
        p, moved = (len(of & images) / len(box) for images in (here, there))
        assert abs(p - moved) <= sum(map(abs, delta)) / q + 1e-12


# The guarantee. The class is 1 where a pixel of 16 levels is above a cut: as the image goes down by
# a level, it loses one of the q steps, so the theorem is tight.

SIGMA, W, REPEATS, ALPHA = 14 / (32 * math.sqrt(3)), 16, 4000, 0.05
LIMIT = ALPHA + 4 * (ALPHA * (1 - ALPHA) / REPEATS) ** 0.5


def false(by, of):
    """The share of certificates beyond the farthest image that has the class."""
    q = len(noise.thresholds(SIGMA, W)) + 1
    far = (of - q / 2) / W  # down to one half of the steps
    hits = np.random.default_rng(0).binomial(200, of / q, size=REPEATS)
    reached = {k: certified(by, k, 200, sigma=SIGMA, alpha=ALPHA).radius for k in {*hits.tolist()}}
    return np.mean([reached[k] > far for k in hits.tolist()])


@pytest.mark.parametrize("of", [8, 11, 14])
def test_at_most_alpha_of_the_certificates_are_false(of):
    assert false(uniform, of) <= LIMIT


def test_the_simulation_sees_what_is_false():
    """The certificate of Gaussian noise, which uniform noise is not."""
    assert false(cohen, 14) > LIMIT


def test_the_shares_of_the_simulation_are_those_of_the_noise():
    seen = draws(SIGMA, W, 8, 20_000)

    assert (seen > (8 - 3.4) / W).mean() == pytest.approx(10 / 14, abs=0.015)
    assert (draws(SIGMA, W, 6, 20_000) > (8 - 3.4) / W).mean() == pytest.approx(8 / 14, abs=0.015)


def test_a_certificate_is_of_its_own_noise():
    for certificate, of in (("cohen", "uniform"), ("two_class", "uniform"), ("uniform", "sound")):
        with refused(ConfigError, f"certificate: {certificate} does not hold under the noise {of}"):
            dataclasses.replace(DRAWS, noise=of, certificate=certificate, stop="none")
        with refused(ConfigError, "does not hold under the noise"):
            certify.require(header(noise=of, certificate=certificate), certificates=[certificate])
    head, rows = random_votes(0, images=3, noise="uniform", certificate="uniform")
    for made in (
        lambda: certify.certify(head, rows, certificates=["cohen"]),
        lambda: _top.table(head, rows, k=1, alpha=0.01),
        lambda: dataclasses.replace(
            head, stop="spending", stopping={"radii": [0], "beta": 0.1}
        ).rule(),
    ):
        with refused(ConfigError):
            made()


def test_tables_say_the_norm_and_do_not_mix_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records.write(tmp_path / "l1.jsonl", *random_votes(0, images=30, n=500, noise="uniform",
                                                        certificate="uniform"))  # fmt: skip
    records.write(tmp_path / "l2.jsonl", *random_votes(1, images=30, n=500))
    how = {"n": None, "alpha": None, "out": None}

    said = tables.derive(tmp_path / "l1.jsonl", certificates=[], **how)

    (path,) = (tmp_path / "results").glob("l1-*.csv")
    assert "certified accuracy in ℓ₁, %" in said and certify.read(path)["norm"].unique() == ["l1"]
    files = [path, tmp_path / "l2.jsonl"]
    with refused(DataError, "l1 radii", "l2 radii", "report them apart"):
        tables.report_files(files, out=None, alpha=None, sigma=None)
    assert {tables.read(one).norm for one in (path, tmp_path / "l1.jsonl")} == {"l1"}
    with refused(ConfigError, "l1.tsv cannot say that its radii are l1; write a .csv"):
        tables.derive(tmp_path / "l1.jsonl", certificates=[], **how | {"out": tmp_path / "l1.tsv"})
    assert not (tmp_path / "l1.tsv").exists()


def test_training_draws_it_with_the_same_variance():
    x = torch.zeros(4096, 1, 4, 4)
    z, u = Draws(0, 0).normal(x), Draws(0, 0).of_law("uniform").normal(x)

    assert torch.equal(Draws(0, 0).of_law("gaussian").normal(x), z)
    assert torch.equal(u, uniform_of(z)) and u.abs().max() <= math.sqrt(3)
    assert stats.kstest(u.flatten().numpy(), stats.uniform(-(3**0.5), 2 * 3**0.5).cdf).pvalue > 1e-3
