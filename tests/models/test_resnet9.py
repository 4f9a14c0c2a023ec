"""ResNet-9 is the published shape, and its inference form is the same function."""

import pytest
import torch
from builders import refused
from torch import nn

from rrcm.config.sections import Model
from rrcm.core.errors import ConfigError
from rrcm.models.folding.resnet9 import fold
from rrcm.models.networks import resnet9
from rrcm.models.trained.base import classifier

SHAPE = {"stem": 8, "image_size": 32, "channels": 3, "projector_width": 32, "projector_dim": 16}
SIGMA = torch.tensor(0.25, dtype=torch.float64)


def build(**changed) -> classifier.Classifier:
    """A network in float64 in which every parameter and statistic matters."""
    torch.manual_seed(0)
    model = Model(architecture="resnet9", shape=SHAPE | changed)
    network = classifier.build(model, classes=10, condition="exact", final_norm=False).double()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    nn.init.normal_(network.head.weight)
    return network


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
    network = build().train(training)
    with torch.no_grad():
        expected = published(network, SHAPE["stem"])
    x = torch.rand(5, 3, 32, 32).double()

    scores = network(x, SIGMA)
    reference = expected(2 * x - 1)
    scores.square().sum().backward()
    reference.square().sum().backward()

    torch.testing.assert_close(scores, reference, atol=1e-9, rtol=1e-10)
    ours = sorted(p.grad.norm().item() for p in network.parameters())
    theirs = sorted(p.grad.norm().item() for p in expected.parameters())
    assert ours == pytest.approx(theirs, rel=1e-8)


@pytest.mark.parametrize("changed", [{}, {"channels": 1, "image_size": 28}, {"image_size": 11}])
def test_its_inference_form_is_the_same_function(changed):
    network = build(**changed).eval()
    x = torch.randn(3, *network.encoder.size).double()
    folded = fold(network)

    expected = network(x, SIGMA)

    torch.testing.assert_close(folded(x, SIGMA), expected, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(folded.fix(0.25)(x), expected, atol=1e-10, rtol=1e-10)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())


def test_what_it_cannot_take_is_refused():
    with refused(ConfigError, "image_size: ResNet-9 takes 8 pixels or more, got 7"):
        resnet9.Config(**SHAPE | {"image_size": 7})
    with refused(
        ConfigError, "models: the network is for images of (3, 32, 32)", "gets (3, 32, 28)"
    ):
        build()(torch.rand(1, 3, 32, 28).double(), SIGMA)
    model = Model(architecture="resnet9", shape=SHAPE)
    with refused(ConfigError, "final_norm: resnet9 has no LayerNorm"):
        classifier.build(model, classes=10, condition="exact", final_norm=True)
