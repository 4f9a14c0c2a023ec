"""ResNet-9 is the published shape."""

import networks
import pytest
import torch
from torch import nn

from rrcm.models.trained.base import classifier

SIGMA = torch.tensor(0.25, dtype=torch.float64)


class Published(nn.Module):
    """As Page (2018) describes it, layer by layer, on pixels in [-1, 1]."""

    def __init__(self, w: int) -> None:
        super().__init__()
        pool = nn.MaxPool2d(2)
        self.first = nn.Sequential(*layers(3, w), *layers(w, 2 * w), pool)
        self.residual = nn.ModuleList(
            nn.Sequential(*layers(c, c), *layers(c, c)) for c in (2 * w, 8 * w)
        )
        self.second = nn.Sequential(*layers(2 * w, 4 * w), pool, *layers(4 * w, 8 * w), pool)
        self.head = nn.Linear(8 * w, 10)

    def forward(self, x):
        x = self.first(x)
        x = self.second(x + self.residual[0](x))
        return self.head(0.125 * (x + self.residual[1](x)).amax(dim=(2, 3)))


def layers(channels: int, out: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]


def published(network: classifier.Classifier, w: int) -> Published:
    """The same layers with the weights of ``network``."""
    other = Published(w).double()
    order = ("stem", "stages.0.down", "stages.0.block", "stages.1", "stages.2")
    named = dict(network.state_dict())
    ours = [t for part in order for name, t in named.items() if name.startswith(f"encoder.{part}")]
    ours += [network.head.weight, network.head.bias]
    parts = other.first, other.residual[0], other.second, other.residual[1], other.head
    theirs = [t for part in parts for t in part.state_dict().values()]
    for tensor, value in zip(theirs, ours, strict=True):
        tensor.copy_(value)
    return other.train(network.training)


@pytest.mark.parametrize("training", [True, False])
def test_values_and_gradients_are_those_of_the_published_layers(training):
    """Pooling before ReLU, and channels last, change neither."""
    torch.manual_seed(0)
    network = networks.build("resnet9", classes=10).double().train(training)
    networks.fill(network)
    with torch.no_grad():
        expected = published(network, networks.RESNET9["stem"])
    x = torch.rand(5, 3, 32, 32).double()

    scores = network(x, SIGMA)
    reference = expected(2 * x - 1)
    scores.square().sum().backward()
    reference.square().sum().backward()

    torch.testing.assert_close(scores, reference, atol=1e-9, rtol=1e-10)
    ours = sorted(p.grad.norm().item() for p in network.parameters())
    theirs = sorted(p.grad.norm().item() for p in expected.parameters())
    assert ours == pytest.approx(theirs, rel=1e-8)
