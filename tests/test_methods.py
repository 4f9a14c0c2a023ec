"""Training methods: one contract for all, and each one's own equation."""

import re

import pytest
import torch
import torch.nn.functional as F
from helpers import Linear, constants, turned

from rrcm import losses, registry
from rrcm.draws import Draws
from rrcm.methods import consistency, gaussian, rrcm

B, K = 64, 3
SIGMA = torch.tensor(0.1)


def batch():
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(K, (B,), generator=generator)
    return torch.rand(B, 3, 2, 2, generator=generator), y


def model():
    torch.manual_seed(0)
    return Linear(12, K)


def method_loss(method, network, *, y=None, **changed):
    cfg = method.Config(**constants(method) | changed)
    x, labels = batch()
    y = labels if y is None else y
    return method.loss(network, x, y, sigma=SIGMA, draw=Draws(0, 0), cfg=cfg)


@pytest.mark.parametrize("name", registry.names("methods"))
def test_method(name):
    """The contract of rrcm/methods/: a paper, losses per example, and they can be lowered."""
    method, network = registry.load("methods", name), model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    before = method_loss(method, network)

    for _ in range(20):
        optimizer.zero_grad()
        method_loss(method, network).mean().backward()
        optimizer.step()

    assert re.search(r"\(20\d\d\)", method.__doc__), "say which paper"
    assert isinstance(method.PRETRAINED, bool)
    assert before.shape == (B,), "losses are per example; the trainer averages"
    assert method_loss(method, network).mean() < before.mean()


@pytest.mark.parametrize("name", registry.names("methods"))
def test_every_knob_of_a_method_turns_something(name):
    method, network = registry.load("methods", name), model()

    for knob, value in constants(method).items():
        changed = method_loss(method, network, **{knob: turned(value)})
        assert not torch.allclose(method_loss(method, network), changed), f"{knob} does nothing"


@pytest.mark.parametrize("name", registry.names("methods"))
def test_method_takes_probabilities_for_labels(name):
    """Certain ones are the labels; mixed ones cost the mean of both."""
    method, network, (_, y) = registry.load("methods", name), model(), batch()
    one, other = F.one_hot(y, K).float(), F.one_hot(y.flip(0), K).float()
    found = [method_loss(method, network, y=each) for each in (one, other, (one + other) / 2)]

    torch.testing.assert_close(found[0], method_loss(method, network))
    torch.testing.assert_close(found[2], (found[0] + found[1]) / 2)


@pytest.mark.parametrize("name", registry.names("methods"))
def test_method_draws_for_its_part_of_a_batch_what_one_process_would(name):
    method, network, (x, y) = registry.load("methods", name), model(), batch()
    cfg = method.Config(**constants(method))

    def loss(rows):
        draw = Draws(3, 5, first=rows.start)
        return method.loss(network, x[rows], y[rows], sigma=SIGMA, draw=draw, cfg=cfg)

    parts = [loss(slice(0, 24)), loss(slice(24, B))]

    torch.testing.assert_close(torch.cat(parts), loss(slice(0, B)))


@pytest.mark.parametrize("name", registry.names("methods"))
def test_method_trains_at_sigma_and_says_so_to_the_model(name):
    """Noise of sigma is drawn afresh for every image, and the model is told that sigma."""
    method, seen = registry.load("methods", name), []

    def network(x, sigma):
        seen.append((x, sigma))
        return x.flatten(1)[:, :K]

    method.loss(
        network,
        torch.full((1000, 3, 2, 2), 0.5),
        torch.zeros(1000, dtype=torch.int64),
        sigma=torch.tensor(0.7),
        draw=Draws(0, 0),
        cfg=method.Config(**constants(method)),
    )

    ((x, sigma),) = seen
    assert sigma == torch.tensor(0.7)
    assert x.mean().item() == pytest.approx(0.5, abs=0.05)
    assert x.std().item() == pytest.approx(0.7, rel=0.05)
    assert len(x.unique(dim=0)) == len(x)


def test_gaussian_is_cross_entropy_on_one_noisy_copy():
    network, (x, y) = model().double(), batch()
    noisy = x + SIGMA * Draws(0, 0).normal(x)

    p = network(noisy.double(), SIGMA).softmax(dim=1)
    expected = [-torch.log(p[i, y[i]]).item() for i in range(B)]

    assert method_loss(gaussian, model()).tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("method", [consistency, rrcm])
def test_rrcm_fine_tunes_with_the_consistency_loss(method):
    """The paper's step on top of its encoder is Jeong & Shin's loss, not one of its own."""
    assert (method.loss, method.Config) == (losses.consistency, losses.Consistency)


def test_only_rrcm_needs_a_pretrained_encoder():
    assert rrcm.PRETRAINED
    assert not (gaussian.PRETRAINED or consistency.PRETRAINED)


def test_consistency_with_no_weights_is_cross_entropy():
    """lbd = eta = 0 leaves the mean over copies of what `gaussian` does with one."""
    network, (x, y) = model(), batch()
    loss = method_loss(consistency, network, lbd=0.0, eta=0.0)
    draw = Draws(0, 0)
    noisy = [x + SIGMA * draw.normal(x) for _ in range(2)]

    expected = [F.cross_entropy(network(copy, SIGMA), y, reduction="none") for copy in noisy]

    torch.testing.assert_close(loss, torch.stack(expected).mean(dim=0))
