"""Votes depend on seed, image and draw, and on nothing else: and so certificates are true."""

import json
import threading
import time
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from builders import SIGMA, exported, refused, split
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from rrcm import noise, registry, votes
from rrcm.certificates import cohen
from rrcm.config import Sample
from rrcm.errors import BackendError, ConfigError, VotesError
from rrcm.sample import header, sample, subset, vote
from rrcm.shards import Split

CFG = Sample(
    backend="linear", precision="fp32", batch_size=7, n0=5, n=23, seed=0, subset="all"
)  # four batches of 7 draws


class Linear:
    """Scores x.w + b in float64, one addition after the other: a row never knows its batch."""

    provider, weights = "float64", "0" * 64

    def __init__(self, w, b):
        self.w, self.b = torch.tensor(w).double(), torch.tensor(b).double()  # [D, K], [K]
        self.classes = [str(k) for k in range(len(b))]
        self.busy = threading.Lock()

    def scores(self, x, sigma):
        assert self.busy.acquire(blocking=False), "two threads share a backend"
        time.sleep(1e-3 * float(x[0, 0, 0, 0] > 0.5))  # some images take longer
        scores = self.b
        for pixel, w in zip(x.double().flatten(1).T, self.w, strict=True):
            scores = scores + pixel[:, None] * w
        self.busy.release()
        return scores


def linear():
    return Linear([[3.0, 0, -1], [-2, 1, 2], [0, 2, -3], [1, -3, 2]], [0.0, 0.1, 0.2])


def images(count, shape=(1, 2, 2), classes=3):
    rng = np.random.default_rng(0)
    return Split(
        idx=rng.permutation(10 * count)[:count],
        images=rng.integers(0, 17, (count, *shape), dtype=np.uint8),
        labels=rng.integers(0, classes, count),
        classes=tuple(str(k) for k in range(classes)),
        white=16,
    )


SIX = images(6)
DEFINITION = header(linear(), "linear", "a-run", SIGMA, CFG)


def sampled(make=linear, split=SIX, cfg=CFG, *, workers=1, before=b""):
    """The votes file that sampling makes, from what was there before."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "votes.jsonl")
        if before:
            path.write_bytes(before)
        definition = header(make(), cfg.backend, "a-run", SIGMA, cfg)
        list(sample(make, split, definition, path, workers=workers))
        votes.read(path)  # nothing in it is damaged
        return path.read_bytes()


@cache
def whole():
    return sampled()


def rows(file):
    """What a votes file says of each image."""
    return {row["idx"]: row for row in map(json.loads, file.splitlines()[1:])}


@pytest.mark.parametrize("workers", [2, 3, 9])
def test_workers_do_not_change_a_byte(workers):
    assert sampled(workers=workers) == whole()
    assert len(whole().splitlines()) == 1 + 6


@pytest.mark.parametrize(("workers", "backends"), [(1, 1), (3, 3), (9, 6)])
def test_each_worker_has_a_backend_of_its_own(tmp_path, workers, backends):
    """And none is made for which there is no image."""
    made = []

    def make():
        made.append(linear())
        return made[-1]

    list(sample(make, SIX, DEFINITION, tmp_path / "votes", workers=workers))

    assert len(made) == backends


@few
@given(st.data())
def test_votes_resumed_after_any_cut_are_the_uninterrupted_ones(data):
    cut = data.draw(st.integers(0, len(whole())))

    assert sampled(before=whole()[:cut], workers=data.draw(st.integers(1, 2))) == whole()


@few
@given(st.permutations(range(6)))
def test_an_image_has_the_same_votes_in_any_order(order):
    shuffled = replace(SIX, idx=SIX.idx[order], images=SIX.images[order], labels=SIX.labels[order])

    assert rows(sampled(split=shuffled)) == rows(whole())


@pytest.mark.parametrize("batch_size", [1, 28, 64])
def test_batches_do_not_change_a_vote(batch_size):
    """Of a classifier whose kernels do not know their batch; the header says which batch it was."""
    other = sampled(cfg=replace(CFG, batch_size=batch_size))

    assert rows(other) == rows(whole())
    assert other.splitlines()[0] != whole().splitlines()[0]


def test_the_first_draws_select_and_the_next_ones_estimate():
    """Votes are the argmax of scores of x + sigma z, z as noise.gaussian draws it."""
    backend, draws = linear(), torch.arange(28)
    for i, idx in enumerate(SIX.idx):
        x = torch.from_numpy(SIX.pixels(i))
        z = noise.gaussian(0, torch.full_like(draws, int(idx)), draws, (1, 2, 2))
        label = backend.scores(x + SIGMA * z, SIGMA).argmax(dim=1).numpy()

        n0, n = vote(backend, x, int(idx), DEFINITION)

        assert n0.tolist() == np.bincount(label[:5], minlength=3).tolist()
        assert n.tolist() == np.bincount(label[5:], minlength=3).tolist()


def test_images_and_seeds_have_noise_of_their_own():
    """The same pixels under another name, or another seed, get other votes."""
    cfg = replace(CFG, n=1000, batch_size=1005)
    twins = replace(SIX, images=np.repeat(SIX.images[:1], 6, axis=0))

    counts = {str(row["n"]) for row in rows(sampled(split=twins, cfg=cfg)).values()}

    assert len(counts) == 6
    assert rows(sampled(cfg=replace(CFG, seed=1))) != rows(whole())


@pytest.mark.parametrize("field", Sample.__slots__)
def test_every_setting_is_in_the_header(field):
    """So that votes of one setting are never continued, or read, as those of another."""
    value = getattr(CFG, field)
    cfg = replace(CFG, **{field: f"{value}'" if isinstance(value, str) else value + 1})

    assert header(linear(), cfg.backend, "a-run", SIGMA, cfg) != DEFINITION


@pytest.mark.parametrize("attribute", ["weights", "provider", "classes"])
def test_what_a_backend_is_stands_in_the_header(attribute):
    backend = linear()
    setattr(backend, attribute, ["other"])

    assert getattr(header(backend, "linear", "a-run", SIGMA, CFG), attribute) == ["other"]


def test_progress_counts_images_and_starts_at_what_is_there(tmp_path):
    run = partial(sample, linear, SIX, DEFINITION, tmp_path / "votes", workers=1)
    stopped = run()
    seen = [next(stopped), next(stopped), next(stopped)]
    stopped.close()

    assert seen == [0, 1, 2]
    assert list(run()) == [2, 3, 4, 5, 6]
    assert list(run()) == [6]
    assert (tmp_path / "votes").read_bytes() == whole()


def test_a_failing_worker_loses_no_finished_image(tmp_path):
    path, failing = tmp_path / "votes", linear()
    batches = [failing.scores] * 14  # four an image: the fourth image fails
    failing.scores = lambda x, sigma: batches.pop()(x, sigma)

    with pytest.raises(IndexError):
        list(sample(lambda: failing, SIX, DEFINITION, path, workers=1))

    assert len(votes.read(path)[1]) == 3
    assert list(sample(linear, SIX, DEFINITION, path, workers=2)) == [3, 4, 5, 6]
    assert path.read_bytes() == whole()


def test_votes_of_other_weights_are_not_continued():
    stranger = linear()
    stranger.weights = "1" * 64

    with refused(VotesError, "weights was", "move the file away"):
        sampled(lambda: stranger, before=whole())


def test_a_score_that_is_no_number_is_refused():
    broken = linear()
    broken.b[1] = torch.nan

    with refused(BackendError, "run a-run: NaN scores", f"image {SIX.idx[0]}", f"sigma {SIGMA}"):
        sampled(lambda: broken)


@pytest.mark.parametrize("classes", [("0", "1"), ("1", "0", "2"), ("zero", "one", "two")])
def test_classes_must_be_those_of_the_data(classes):
    with refused(BackendError, "run a-run has 3 classes", "the data"):
        sampled(split=replace(SIX, classes=classes))


def test_among_equal_scores_the_lowest_class_wins():
    tied = Linear(np.zeros((4, 3)), [0.0, 1.0, 1.0])

    n0, n = vote(tied, torch.zeros(1, 2, 2), 0, DEFINITION)

    assert (n0.tolist(), n.tolist()) == ([0, 5, 0], [0, 23, 0])


@pytest.mark.parametrize(
    ("rule", "chosen"),
    [
        ("all", [0, 1, 2, 3, 4, 5, 6]),
        ("every:1", [0, 1, 2, 3, 4, 5, 6]),
        ("every:3", [0, 3, 6]),
        ("every:20", [0]),
        ("first:2", [0, 1]),
        ("first:20", [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_a_subset_is_what_its_rule_says(rule, chosen):
    assert subset(rule, 7).tolist() == chosen


@pytest.mark.parametrize("rule", ["", "some", "every", "every:", "every:0", "first:-1", "first:x"])
def test_an_unknown_subset_is_refused(rule):
    with refused(ConfigError, "sample.subset: expected all, every:K or first:K", repr(rule)):
        subset(rule, 7)


def test_only_the_subset_is_sampled():
    some = rows(sampled(cfg=replace(CFG, subset="every:2")))

    assert some == {idx: rows(whole())[idx] for idx in SIX.idx[::2]}


def test_certificates_of_a_linear_classifier_are_true():
    """End to end, with the noise that certifies: for f = [x.w > b], the smoothed classifier is f
    and its distance to the boundary is |x.w - b| / |w|. A certificate may exceed it in a share
    alpha of images; allowing three times alpha, as a control, is seen.
    """
    many = images(400, classes=2)
    w, b, alpha = np.array([0.6, -0.8, 1.0, 0.3]), 0.55, 0.05
    backend = Linear(np.stack([-w / 2, w / 2], axis=1), [b / 2, -b / 2])
    definition = header(
        backend, "linear", "a-run", SIGMA, replace(CFG, n0=20, n=200, batch_size=220)
    )
    false = {alpha: 0, 3 * alpha: 0}
    for i, idx in enumerate(many.idx):
        x = many.pixels(i)
        margin = (x.flatten() @ w - b) / np.linalg.norm(w)
        counts = vote(backend, torch.from_numpy(x), int(idx), definition)
        for level in false:
            got = cohen.certify(*counts, sigma=SIGMA, alpha=level)
            right = got.label in (cohen.ABSTAIN, int(margin > 0))
            false[level] += not right or got.radius > abs(margin)

    assert false[alpha] <= binom.ppf(1 - 1e-4, len(many.idx), alpha) < false[3 * alpha]


@pytest.mark.parametrize("name", registry.names("backends"))
def test_a_real_backend_votes_the_same_however_it_is_driven(name):
    module, digits = registry.load("backends", name), split(5)
    make = partial(module.Backend, exported(), "a-run", precision="fp32", device="cpu")
    cfg = replace(CFG, backend=name, batch_size=16, n=43)
    order = [3, 0, 4, 2, 1]
    shuffled = replace(
        digits, idx=digits.idx[order], images=digits.images[order], labels=digits.labels[order]
    )

    whole = sampled(make, digits, cfg)

    assert len({c for row in rows(whole).values() for c in row["n"]}) > 1
    assert sampled(make, digits, cfg, workers=2) == whole
    assert sampled(make, digits, cfg, before=whole[: len(whole) // 2]) == whole
    assert rows(sampled(make, shuffled, cfg, workers=2)) == rows(whole)
