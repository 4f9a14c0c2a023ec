"""The methods that the adversarial-robustness-toolbox (ART) has too, where it is installed.

Its trainers draw their own noise, so they are given ours; they make their own steps, so the
gradient of each is kept instead. What it calls SmoothAdv is another method: it attacks a single
noisy copy, in the maximum norm.
"""

import numpy as np
import pytest
import torch
from torch import nn

from rrcm.training.engine.draws import Draws
from rrcm.training.methods import gaussian, macer, smoothmix
from rrcm.training.shared import attacks

pytest.importorskip("art", reason="pip install adversarial-robustness-toolbox")

pytestmark = pytest.mark.filterwarnings("ignore")  # of a package that is not ours

B, K, M, PIXELS = 6, 3, 2, (2, 3, 3)
SIGMA = 0.3


class Network(nn.Module):
    """Takes a noise level, or none."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(18, 8), nn.Tanh(), nn.Linear(8, K))

    def forward(self, x, sigma=None):
        return 3 * self.layers(x)


class Kept(torch.optim.SGD):
    """Keeps each gradient, and makes no step."""

    def step(self, closure=None):
        self.found = [p.grad.clone() for p in self.param_groups[0]["params"]]
        self.all = [*getattr(self, "all", []), self.found]


def images(count=B):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, *PIXELS, generator=generator)


def labels(network, count=B):
    """What the network answers, but for the first ones."""
    y = network(images(count)).argmax(dim=1)
    return torch.cat([(y[:2] + 1) % K, y[2:]])


def gradient(method, network, x, y, **constants):
    """Ours, for the noise that ART is given."""
    found = method.loss(
        *(network, x, y),
        sigma=torch.tensor(SIGMA),
        draw=Draws(0, 0),
        done=0.999999,
        cfg=method.Config(**constants),
    )
    return torch.autograd.grad(found.mean(), [*network.parameters()])


def trained(trainer, network, x, y, monkeypatch, *, normal, **constants):
    """The gradients of ART's steps on one batch in order, ``normal`` being what it draws."""
    loader = torch.utils.data.DataLoader
    monkeypatch.setattr(
        torch.utils.data,
        "DataLoader",
        lambda **settings: loader(**settings | {"shuffle": False}),
    )
    monkeypatch.setattr(torch, "randn_like", lambda x, **_: next(normal).view_as(x))
    optimizer = Kept(network.parameters(), lr=1.0)
    classifier = trainer(
        model=network,
        loss=nn.CrossEntropyLoss(),
        optimizer=optimizer,
        input_shape=PIXELS,
        nb_classes=K,
        clip_values=(0, 1),
        device_type="cpu",
        scale=SIGMA,
        **constants,
    )
    classifier.fit(x.numpy(), y.numpy(), nb_epochs=1, batch_size=len(x), verbose=False)
    return optimizer.all


def test_gaussian_trains_as_in_art(monkeypatch):
    from art.estimators.certification.randomized_smoothing import PyTorchRandomizedSmoothing

    network, x = Network(), images()
    y, z = labels(network), Draws(0, 0).normal(images())
    monkeypatch.setattr(np.random, "normal", lambda mean, scale, size: mean + scale * z.numpy())

    (found,) = trained(*(PyTorchRandomizedSmoothing, network, x, y, monkeypatch), normal=iter([z]))

    torch.testing.assert_close(found, [*gradient(gaussian, network, x, y)])


@pytest.mark.parametrize("beta", [1.0, 16.0])
def test_macer_trains_as_in_art(beta, monkeypatch):
    """At a low and at the published inverse temperature."""
    from art.estimators.certification.randomized_smoothing import PyTorchMACER

    network, x, draw = Network(), images(), Draws(0, 0)
    y, z = labels(network), [draw.normal(images()) for _ in range(M)]
    shared = {"gamma": 2.0, "beta": beta}

    (found,) = trained(
        *(PyTorchMACER, network, x, y, monkeypatch),
        **shared | {"normal": iter([torch.stack(z, dim=1)]), "lmbda": 12.0, "gaussian_samples": M},
    )
    expected = gradient(macer, network, x, y, **shared, lbd=12.0, m=M, defer=0.0)

    torch.testing.assert_close(found, [*expected])


@pytest.mark.parametrize("one_step", [False, True])
def test_smoothmix_trains_as_in_art(one_step, monkeypatch):
    """Which cuts a batch into parts, and makes a step with each."""
    from art.estimators.certification.randomized_smoothing import PyTorchSmoothMix

    network, x, draw = Network(), images(M * B), Draws(0, 0)
    y, z = labels(network, M * B), [draw.normal(images()) for _ in range(M)]
    draw.normal(images())  # directions for zero gradients
    share = draw.uniform(images())
    monkeypatch.setattr(torch, "rand", lambda *_, **__: share)
    shared = {"eta": 5.0, "alpha": 0.4, "warmup": 1}

    found, _ = trained(
        *(PyTorchSmoothMix, network, x, y, monkeypatch),
        normal=iter([*z, *z]),
        num_noise_vec=M,
        num_steps=3,
        mix_step=1 if one_step else 0,
        **shared,
    )
    monkeypatch.undo()
    constants = shared | {"warmup": 0.0, "m": M, "steps": 3, "one_step": one_step}
    expected = gradient(smoothmix, network, x[:B], y[:B], **constants, max_norm=float("inf"))

    torch.testing.assert_close(found, [*expected])


def test_pgd_is_that_of_art():
    """Of one copy without noise: in L2, with a ball and a box."""
    from art.attacks.evasion import ProjectedGradientDescent
    from art.estimators.classification import PyTorchClassifier

    network, x = Network(), images()
    y = labels(network)
    classifier = PyTorchClassifier(
        *(network, nn.CrossEntropyLoss(), PIXELS, K), clip_values=(0, 1), device_type="cpu"
    )
    attack = ProjectedGradientDescent(
        classifier, norm=2, eps=0.6, eps_step=0.4, max_iter=3, verbose=False
    )

    found = attacks.pgd(
        *(network, x, y, torch.zeros(1, *x.shape)),
        sigma=torch.tensor(0.0),
        steps=3,
        step=0.4,
        radius=0.6,
        draw=Draws(0, 0),
    )

    expected = torch.from_numpy(attack.generate(x.numpy(), y=y.numpy()))
    torch.testing.assert_close(found[-1], expected, rtol=1e-5, atol=1e-5)
