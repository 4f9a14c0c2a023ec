"""What is said of representations is true of them: probes and distances."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import refused, split
from helpers import MODEL, REPRESENTATION, equal
from sklearn.linear_model import LogisticRegression
from torch import nn

from rrcm.core.errors import CheckpointError, TrainingError
from rrcm.evaluation import frechet, probe
from rrcm.models.trained.base import checkpoint, classifier
from rrcm.noise import streams

CFG = replace(REPRESENTATION, penalty=0.01, normalised=False, images=40, batch_size=16)


class Pixels(nn.Module):
    """The first ``width`` pixels as the representation; keeps the noise levels it is told."""

    def __init__(self, width=3):
        super().__init__()
        self.width, self.sigmas = width, []
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x, sigma):
        self.sigmas.append(sigma.item())
        return self.weight * x.flatten(1)[:, 20 : 20 + self.width]


def gaussians(rows=300):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, rows)
    means = np.array([[0, 0], [1, 2], [2, -1]])
    return (means[labels] + rng.normal(size=(rows, 2))).astype(np.float32), labels


def test_the_probe_is_multinomial_logistic_regression():
    """scikit-learn's, whose C is the inverse of the penalty times the number of rows."""
    features, labels = gaussians()
    weights, biases = probe.probe(features, labels, classes=3, penalty=0.02, entropy=0.0)

    theirs = LogisticRegression(C=1 / (0.02 * len(labels)), tol=1e-8, max_iter=1000)
    theirs.fit(features.astype(np.float64), labels)
    np.testing.assert_allclose(weights, theirs.coef_, atol=1e-4)
    likely = np.exp(features @ weights.T + biases)  # of which only differences are settled
    likely /= likely.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(likely, theirs.predict_proba(features), atol=1e-4)


def test_the_probe_is_a_minimum_of_its_loss_with_the_entropy(monkeypatch):
    """No small step is downhill on the formula, in whatever pieces it was computed."""
    features, labels = gaussians()
    monkeypatch.setattr(probe, "ROWS", 64)
    head = probe.probe(features, labels, classes=3, penalty=0.02, entropy=0.7)
    without = probe.probe(features, labels, classes=3, penalty=0.02, entropy=0.0)

    def loss(weights, biases):
        scores = features @ weights.T + biases
        likely = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        entropy = -(np.exp(likely) * likely).sum(axis=1)
        right = likely[np.arange(len(labels)), labels]
        return (0.7 * entropy - right).mean() + 0.01 * (weights**2).sum()

    rng = np.random.default_rng(1)
    for _ in range(20):
        step = [1e-3 * rng.normal(size=part.shape) for part in head]
        assert loss(*(p + s for p, s in zip(head, step, strict=True))) > loss(*head)
    assert loss(*head) < loss(*without)


def test_a_probe_without_a_minimum_is_refused(monkeypatch):
    monkeypatch.setattr(probe, "ITERATIONS", 2)
    with refused(TrainingError, "penalty", "0.02"):
        probe.probe(*gaussians(), classes=3, penalty=0.02, entropy=0.0)


def test_representations_are_of_images_with_the_noise_that_is_told():
    """t / 2 in pixels, the same noise for an image at every t and in every batch."""
    some, encoder = split(20), Pixels(width=44)

    def found(batch_size=16, **more):
        given = {"t": 0.6, "draw": 1, "rows": 20} | more
        cfg = replace(CFG, batch_size=batch_size)
        return np.concatenate([*probe.encode(encoder, some, cfg, **given)])

    clean = found(draw=None)
    z = streams.gaussian(
        *(0, torch.from_numpy(some.idx), torch.ones(20, dtype=torch.int64), (1, 8, 8)),
        stream=streams.VALIDATE,
    )
    expected = z.flatten(1)[:, 20:].numpy()
    assert encoder.sigmas == [pytest.approx(0.3)] * 2
    np.testing.assert_array_equal(clean, some.pixels().reshape(20, -1)[:, 20:])
    np.testing.assert_allclose((found() - clean) / 0.3, expected, atol=1e-6)
    np.testing.assert_allclose((found(t=8.0) - clean) / 4, expected, atol=1e-6)
    np.testing.assert_array_equal(found(batch_size=7), found())
    assert np.abs(found(draw=2) - found()).min() > 0
    assert len(found(rows=5)) == 5


@pytest.mark.parametrize(("trained", "t"), [(0.0, CFG.t_min), (0.5, 1.0)])
def test_the_probe_is_trained_at_one_sigma_and_tried_at_each(trained, t):
    encoder, data = Pixels(width=44), {"train": split(60), "test": split(40)}
    cfg = replace(CFG, train_sigma=trained)
    rows = probe.accuracies(encoder, data, cfg)

    told = [t / 2] * 4 + [0.001] * 3 + [0.5] * 3  # training images, then test images at each sigma
    assert encoder.sigmas == pytest.approx(told)
    assert [row["sigma"] for row in rows] == [0.0, 0.5]
    assert all(row["accuracy"] == row["right"] / 40 and row["images"] == 40 for row in rows)
    if not trained:
        assert rows[1]["accuracy"] < rows[0]["accuracy"]
    draws = torch.full((60,), probe.TRAIN)
    z = streams.gaussian(
        *(0, torch.from_numpy(data["train"].idx), draws, (1, 8, 8)), stream=streams.VALIDATE
    )
    noisy = torch.from_numpy(data["train"].pixels()) + trained * z
    weights, biases = probe.probe(
        *(noisy.flatten(1)[:, 20:].numpy(), data["train"].labels),
        classes=10,
        penalty=CFG.penalty,
        entropy=0.0,
    )
    scores = data["test"].pixels().reshape(40, -1)[:, 20:] @ weights.T + biases
    assert rows[0]["right"] == (scores.argmax(axis=1) == data["test"].labels).sum()


def test_the_distance_is_that_of_noise_and_images_in_the_units_asked_for():
    some = split(40)
    plain = probe.distance(Pixels(), some, CFG)
    scaled = probe.distance(Pixels(), some, replace(CFG, normalised=True))

    def features(t, draw):
        parts = probe.encode(Pixels(), some, CFG, t=t, draw=draw, rows=40)
        return np.concatenate([*parts]).astype(np.float64)

    noisy, clean = features(80.0, probe.NOISE), features(0.002, probe.CLEAN)
    none = features(0.002, None)
    for found, std in ((plain, 1.0), (scaled, none.std(axis=0, ddof=1))):
        ends = [frechet.moments([each / std]) for each in (noisy, clean)]
        assert found["distance"] == pytest.approx(frechet.distance(*ends), rel=1e-6)
        assert found["bias"] == pytest.approx(frechet.bias(*ends), rel=1e-6)
        assert (found["images"], found["dimensions"]) == (40, 3)
    assert probe.distance(Pixels(), some, replace(CFG, images=11))["images"] == 11


def test_an_encoder_is_read_from_its_file_and_frozen(tmp_path):
    with refused(CheckpointError, "encoder.safetensors", "not found"):
        probe.load_encoder(tmp_path, MODEL)
    whole = classifier.build(MODEL, classes=2, condition="exact", final_norm=True)
    checkpoint.save(tmp_path / "encoder.safetensors", whole.encoder.state_dict())

    found = probe.load_encoder(tmp_path, MODEL)

    assert equal(found.state_dict(), whole.encoder.state_dict())
    assert not found.training and not any(p.requires_grad for p in found.parameters())
