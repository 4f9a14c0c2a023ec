"""Certificates are true: a classifier whose robustness is known, through the whole engine.

For f = [x.w > b] the smoothed classifier is f itself, its probability Phi(margin / sigma), and the
distance to its boundary the margin |x.w - b| / |w|. Thousands of images with the same pixels and
names of their own are as many independent repeats.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from rrcm.certification import certify
from rrcm.certification.sampling import procedure
from rrcm.certification.votes import records
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.config.certification import Sampling
from rrcm.data.splits.shards import Split

SIGMA, ALPHA, REPEATS = 0.5, 0.05, 600
CFG = Sampling(
    backend="linear", precision="fp32", batch_size=4096, noise="gaussian", n0=20, n=200, seed=11,
    split="test", subset="all", stop="none", certificate="cohen",
    alpha=ALPHA,
)  # fmt: skip
CONSTANTS = {
    "none": {},
    "grid": {"radii": [0.0, 0.1, 0.25, 0.5], "beta": 0.01},
    "anytime": {"tolerance": 0.05, "beta": 0.01},
}
W = np.array([0.6, -0.8, 1.0, 0.3])
PIXELS = np.array([3, 5, 8, 14], dtype=np.uint8)  # of 16


class HalfSpace:
    """Scores -s/2 and s/2 of s = x.w - b, in float64."""

    provider, weights, device, normals = "float64", "0" * 64, torch.device("cpu"), ()
    sigma, classes = SIGMA, ("0", "1")

    def __init__(self, b):
        self.b = b

    def scores(self, x):
        s = (x.flatten(1).double() @ torch.from_numpy(W) - self.b) / 2
        return torch.stack([-s, s], dim=1)


def half_space(margin):
    """The half-space of which PIXELS lie in class 1, at this distance from its boundary."""
    return HalfSpace(float(PIXELS @ W / 16 - margin * np.linalg.norm(W)))


def twins():
    return Split(
        idx=np.arange(REPEATS),
        images=np.broadcast_to(PIXELS.reshape(1, 1, 2, 2), (REPEATS, 1, 2, 2)),
        labels=np.ones(REPEATS, dtype=np.int64),
        classes=("0", "1"),
        max_value=16,
    )


@cache
def drawn(folder, margin, stop):
    """Header and rows of many repeats, by the engine."""
    cfg = replace(CFG, stop=stop)
    function, split = half_space(margin), twins()
    definition = procedure.header(function, split, "a-run", cfg, CONSTANTS[stop])
    path, journal = folder / "votes", folder / "journal"
    for _ in procedure.sample(function, split, definition, journal, path, workers=1):
        pass
    return records.read(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("votes")


def certified(found, name, alpha=ALPHA):
    table = certify.certify(*found, certificates=[name], alpha=alpha)
    return table["predict"].to_numpy(), table["radius"].to_numpy()


def false(predict, radius, margin):
    """The share of certificates that are not true, where class 1 has this margin."""
    wrong = (predict != ABSTAIN) & (predict != int(margin > 0))
    return float((wrong | (radius > abs(margin))).mean())


def allowed(alpha):
    """alpha, and four standard errors of a share."""
    return alpha + 4 * np.sqrt(alpha * (1 - alpha) / REPEATS)


@pytest.mark.parametrize(
    ("stop", "name", "margin"),
    [
        *((stop, "cohen", 0.3) for stop in CONSTANTS),
        ("grid", "two_class", 0.0),
    ],
)
def test_a_certificate_is_false_with_probability_alpha_at_most(folder, stop, name, margin):
    """On the boundary itself, whatever is certified is false."""
    predict, radius = certified(drawn(folder, margin, stop), name)

    assert false(predict, radius, margin) <= allowed(ALPHA)


def test_the_alpha_is_used_and_more_of_it_would_be_seen(folder):
    """Up to the steps of the binomial; at three times alpha certificates fail the test above."""
    votes = drawn(folder, 0.3, "none")

    assert false(*certified(votes, "cohen"), 0.3) >= 0.5 * ALPHA
    assert false(*certified(votes, "cohen", alpha=3 * ALPHA), 0.3) > allowed(ALPHA)
