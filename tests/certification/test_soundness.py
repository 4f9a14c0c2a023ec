"""Certificates are true: a classifier whose robustness is known, through the whole engine.

For f = [x.w > b] the smoothed classifier is f itself, its probability Phi(margin / sigma), and the
distance to its boundary the margin |x.w - b| / |w|. Thousands of images with the same pixels and
names of their own are as many independent repeats.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import sampling_runs
from builders import Linear
from sampling_runs import CONSTANTS, header_and_rows, sampled

from rrcm.certification import certify
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.data.splits.shards import Split

ALPHA, REPEATS = 0.05, 600
CFG = replace(sampling_runs.CFG, batch_size=4096, n=200, seed=11, alpha=ALPHA)
W = np.array([0.6, -0.8, 1.0, 0.3])
PIXELS = np.array([3, 5, 8, 14], dtype=np.uint8)  # of 16


def half_space(margin):
    """The half-space of which PIXELS lie in class 1, at this distance from its boundary.

    Scores -s and s of s = x.w - b.
    """
    b = float(PIXELS @ W / 16 - margin * np.linalg.norm(W))
    return Linear(np.stack([-W, W], axis=1), [b, -b])


def twins():
    return Split(
        idx=np.arange(REPEATS),
        images=np.broadcast_to(PIXELS.reshape(1, 1, 2, 2), (REPEATS, 1, 2, 2)),
        labels=np.ones(REPEATS, dtype=np.int64),
        classes=("0", "1"),
        max_value=16,
    )


@cache
def drawn(margin, stop):
    """Header and rows of many repeats, by the engine."""
    votes = sampled(replace(CFG, stop=stop), twins(), make=lambda: half_space(margin))
    return header_and_rows(votes)


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
    [*((stop, "cohen", 0.3) for stop in CONSTANTS), ("grid", "two_class", 0.0)],
)
def test_a_certificate_is_false_with_probability_alpha_at_most(stop, name, margin):
    """On the boundary itself, whatever is certified is false."""
    predict, radius = certified(drawn(margin, stop), name)

    assert false(predict, radius, margin) <= allowed(ALPHA)


def test_the_alpha_is_used_and_more_of_it_would_be_seen():
    """Up to the steps of the binomial; at three times alpha certificates fail the test above."""
    votes = drawn(0.3, "none")

    assert false(*certified(votes, "cohen"), 0.3) >= 0.5 * ALPHA
    assert false(*certified(votes, "cohen", alpha=3 * ALPHA), 0.3) > allowed(ALPHA)
