"""LeNet and ResNet-9 are the published layers."""

import networks
import pytest
import torch
from torch import nn

from rrcm.models.trained.base import classifier


class ResNet9(nn.Module):
    """As Page (2018) describes it, layer by layer."""

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
        x = self.first(2 * x - 1)
        x = self.second(x + self.residual[0](x))
        return self.head(0.125 * (x + self.residual[1](x)).amax(dim=(2, 3)))


def layers(channels: int, out: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]


def resnet9(network: classifier.Classifier) -> ResNet9:
    """The same layers with the weights of ``network``."""
    other = ResNet9(networks.RESNET9["stem"]).double()
    order = ("stem", "stages.0.down", "stages.0.block", "stages.1", "stages.2")
    named = dict(network.state_dict())
    ours = [t for part in order for name, t in named.items() if name.startswith(f"encoder.{part}")]
    ours += [network.head.weight, network.head.bias]
    parts = other.first, other.residual[0], other.second, other.residual[1], other.head
    theirs = [t for part in parts for t in part.state_dict().values()]
    for tensor, value in zip(theirs, ours, strict=True):
        tensor.copy_(value)
    return other.train(network.training)


def lenet(network: classifier.Classifier) -> nn.Sequential:
    """As Jeong & Shin (2020) describe it, layer by layer, with the weights of ``network``."""
    other = layers_of_lenet().double()
    for tensor, value in zip(other.parameters(), network.parameters(), strict=True):
        tensor.copy_(value)
    return other


def layers_of_lenet() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
    )


@pytest.mark.parametrize(
    ("architecture", "published", "training"),
    [("lenet", lenet, False), ("resnet9", resnet9, True), ("resnet9", resnet9, False)],
)
def test_values_and_gradients_are_those_of_the_published_layers(architecture, published, training):
    """Pooling before ReLU, and channels last, change neither."""
    torch.manual_seed(0)
    network = networks.build(architecture, classes=10).double().train(training)
    networks.fill(network)
    with torch.no_grad():
        expected = published(network)
    x = torch.rand(5, *network.encoder.size).double()

    scores, reference = network(x, torch.tensor(0.25).double()), expected(x)
    scores.square().sum().backward()
    reference.square().sum().backward()

    torch.testing.assert_close(scores, reference, atol=1e-9, rtol=1e-10)
    ours, theirs = (
        sorted(p.grad.norm().item() for p in n.parameters()) for n in (network, expected)
    )
    assert ours == pytest.approx(theirs, rel=1e-8)


def test_lenet_begins_with_the_published_weights():
    """Golden: 431,080 parameters, started by the same random numbers in the same order."""
    torch.manual_seed(0)
    found = [*networks.build("lenet", classes=10).parameters()]
    torch.manual_seed(0)
    expected = layers_of_lenet()

    assert sum(p.numel() for p in found) == 431_080
    for ours, theirs in zip(found, expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)
