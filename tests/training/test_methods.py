"""Training methods: one contract for all, and each one's own equation."""

import re

import pytest
import torch
import torch.nn.functional as F
from helpers import Linear, constants, descent, turned
from torch import nn

from rrcm.core import registry
from rrcm.training.engine.draws import Draws
from rrcm.training.methods import consistency, gaussian, rrcm
from rrcm.training.shared import losses

B, K = 64, 3
SIGMA = torch.tensor(0.1)
CLEAN = {"stability"}  # these show the image itself too, once


def batch():
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(K, (B,), generator=generator)
    return torch.rand(B, 3, 2, 2, generator=generator), y


def model():
    torch.manual_seed(0)
    return Linear(12, K)


def told(method, images, classes=K):
    """What else a method's loss is given: a table of probabilities that grow with the class."""
    rising = torch.arange(1.0, classes + 1).expand(images, -1)
    return {"table": rising / rising.sum(dim=1, keepdim=True)} if hasattr(method, "table") else {}


def method_loss(method, network, *, x=None, y=None, sigma=SIGMA, done=0.75, classes=K, **changed):
    cfg = method.Config(**constants(method) | changed)
    images, labels = batch()
    x, y = images if x is None else x, labels if y is None else y
    named = {"sigma": sigma, "draw": Draws(0, 0), "done": done, "cfg": cfg}
    return method.loss(network, x, y, **named, **told(method, len(x), classes))


every = pytest.mark.parametrize("name", registry.names("methods"))


@every
def test_method(name):
    """The contract of a method: a paper, losses per example, and they can be lowered."""
    method, network = registry.load("methods", name), model()
    history = descent(network, lambda: method_loss(method, network), lr=0.1, steps=21)

    assert re.search(r"\(20\d\d\)", method.__doc__), "say which paper"
    assert isinstance(method.PRETRAINED, bool)
    assert method_loss(method, network).shape == (B,), "the trainer averages"
    assert history[-1] < history[0]


@every
def test_every_knob_of_a_method_turns_something(name):
    """The loss, or what is kept of the images."""
    method, network = registry.load("methods", name), model()

    def found(**changed):
        cfg = method.Config(**constants(method) | changed)
        return torch.cat([method_loss(method, network, **changed), *kept(method, cfg)])

    assert bool(constants(method)) == (name != "gaussian")
    for knob in constants(method):
        changed = found(**{knob: turned(method, knob)})
        assert not torch.allclose(found(), changed), f"{knob} does nothing"


def kept(method, cfg, epochs=8):
    """A table of teachers sure by the number of draws, and weights of images ever easier."""
    if hasattr(method, "table"):
        yield method.table(lambda draws: torch.full((B,), 1.0 * draws), cfg)
    weights, images = None, torch.arange(B)
    for epoch in range(epochs) if hasattr(method, "weigh") else ():

        def correct(draws, rows=images, *, epoch=epoch):
            return ((rows + epoch) * draws // (B + epochs)).long()

        weights = method.weigh(weights, correct, epoch=epoch, epochs=epochs, cfg=cfg)
        yield torch.zeros(B) if weights is None else weights.float()


@every
def test_method_takes_probabilities_for_labels(name):
    """Certain ones are the labels; what mixed ones cost is finite."""
    method, network, (_, y) = registry.load("methods", name), model(), batch()
    one, other = F.one_hot(y, K).float(), F.one_hot(y.flip(0), K).float()

    torch.testing.assert_close(method_loss(method, network, y=one), method_loss(method, network))
    assert method_loss(method, network, y=(one + other) / 2).isfinite().all()


@every
def test_method_draws_for_its_part_of_a_batch_what_one_process_would(name):
    method, network, (x, y) = registry.load("methods", name), model(), batch()
    cfg = method.Config(**constants(method))

    def loss(rows):
        named = {"sigma": SIGMA, "draw": Draws(3, 5, first=rows.start), "done": 0.75, "cfg": cfg}
        return method.loss(network, x[rows], y[rows], **named, **told(method, len(y[rows])))

    parts = [loss(slice(0, 24)), loss(slice(24, B))]

    torch.testing.assert_close(torch.cat(parts), loss(slice(0, B)))


class Witness(nn.Module):
    """A network that keeps what it was shown."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x, sigma):
        self.seen.append((x.detach(), sigma))
        return x.flatten(1)[:, :K]


@every
def test_method_trains_at_sigma_and_says_so_to_the_model(name):
    """Noise of sigma is drawn afresh for every image, and the model is told that sigma."""
    method, network = registry.load("methods", name), Witness()
    x, y = torch.full((1000, 3, 2, 2), 0.5), torch.zeros(1000, dtype=torch.int64)

    method_loss(method, network, x=x, y=y, sigma=torch.tensor(0.7))
    told = {sigma.item() for _, sigma in network.seen}
    copies = [copy for shown, _ in network.seen for copy in shown.split(len(x))]
    noisy = [copy for copy in copies if not torch.equal(copy, x)]

    assert told == {torch.tensor(0.7).item()}
    assert len(noisy) == len(copies) - (name in CLEAN) > 0
    for copy in noisy:  # an attack may have moved it by 0.5 in all
        assert copy.mean().item() == pytest.approx(0.5, abs=0.1)
        assert copy.std().item() == pytest.approx(0.7, rel=0.05)
        assert len(copy.unique(dim=0)) == len(copy)


DEGENERATE = {
    "one class": {"classes": 1, "y": torch.zeros(B, dtype=torch.int64)},
    "one image": {"images": 1},
    "no noise": {"sigma": torch.tensor(0.0)},
    "certain predictions": {"scale": 1e4},
    "no gradient": {"scale": 0.0},
    "the first step": {"done": 0.0},
}


@every
@pytest.mark.parametrize("case", DEGENERATE)
def test_method_is_finite_at_the_edges(name, case):
    """So is its gradient, on right and wrong answers alike."""
    changed = {"classes": K, "images": B, "scale": 1.0} | DEGENERATE[case]
    images, scale, classes = changed.pop("images"), changed.pop("scale"), changed["classes"]
    torch.manual_seed(0)
    network, (x, y) = Linear(12, classes), batch()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(scale)
    changed = {"x": x[:images], "y": y[:images]} | changed

    found = method_loss(registry.load("methods", name), network, **changed)
    found.mean().backward()

    assert found.shape == (images,) and found.isfinite().all()
    assert all(p.grad.isfinite().all() for p in network.parameters())


def test_gaussian_is_cross_entropy_on_one_noisy_copy():
    network, (x, y) = model().double(), batch()
    noisy = x + SIGMA * Draws(0, 0).normal(x)

    p = network(noisy.double(), SIGMA).softmax(dim=1)
    expected = [-torch.log(p[i, y[i]]).item() for i in range(B)]

    assert method_loss(gaussian, model()).tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("method", "pretrained"), [(consistency, False), (rrcm, True)])
def test_rrcm_fine_tunes_a_pretrained_encoder_with_the_consistency_loss(method, pretrained):
    """The paper's step on top of its encoder is Jeong & Shin's loss, not one of its own."""
    assert (method.loss, method.Config) == (losses.consistency, losses.Consistency)
    assert method.PRETRAINED == pretrained
