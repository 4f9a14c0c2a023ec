"""LeNet is that of the published table."""

import torch
from networks import build
from torch import nn


def published() -> nn.Sequential:
    """As Jeong & Shin (2020) describe it, layer by layer."""
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
    )


def test_it_has_the_published_layers_and_their_initial_weights():
    """Golden: 431,080 parameters, started by the same random numbers in the same order."""
    torch.manual_seed(0)
    network = build("lenet", classes=10)
    torch.manual_seed(0)
    expected = published()

    found = [*network.parameters()]
    assert sum(p.numel() for p in found) == 431_080
    for ours, theirs in zip(found, expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


def test_values_and_gradients_are_those_of_the_published_layers():
    """Pooling before ReLU, and channels last, change neither."""
    torch.manual_seed(0)
    network = build("lenet", classes=10).double()
    torch.manual_seed(0)
    expected = published().double()
    x = torch.rand(5, 1, 28, 28).double()
    ours, theirs = network(x, torch.tensor(0.5).double()), expected(x)
    ours.square().sum().backward()
    theirs.square().sum().backward()

    torch.testing.assert_close(ours, theirs, atol=1e-14, rtol=1e-12)
    for mine, other in zip(network.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-14, rtol=1e-10)
