"""What BatchNorm remembers shows a network that was rebuilt wrongly, or gets other pictures."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import rrcm

MEAN, STD = 0.5, 0.25
SIGMA = 0.25


def pictures(count: int, seed: int = 0) -> torch.Tensor:
    """Random colours with random stripes, in whole levels of 255."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.rand(count, 3, 1, 1, generator=generator)
    stripes = 0.4 * torch.rand(count, 1, 1, 12, generator=generator)
    return ((base + stripes).clamp(0, 1).expand(-1, -1, 12, -1) * 255).round() / 255


def network(*, activation: Callable[[], nn.Module] = nn.ReLU, pool: bool = False) -> nn.Sequential:
    """Its tensors have the same names and shapes whatever the activation and the pooling."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), activation(),
        nn.MaxPool2d(3, 1, 1) if pool else nn.Identity(),
        nn.Conv2d(8, 16, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(16), activation(),
        nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), activation(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained() -> dict[str, torch.Tensor]:
    """Tensors whose statistics are those of noisy pictures; its weights are random."""
    torch.manual_seed(0)
    net = network().train()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # all batches count alike
    with torch.no_grad():
        for seed in range(4):
            x = pictures(64, seed + 1)
            net((x + SIGMA * torch.randn_like(x) - MEAN) / STD)
    return net.state_dict()


def said(net: nn.Module, state: dict, x: torch.Tensor, *, sigma: float = SIGMA, mean=MEAN) -> str:
    """What the classifier says of noisy pictures."""
    net.load_state_dict(state)
    smoothed = rrcm.smooth(
        net.eval(), sigma=sigma, classes=4, shape=(3, 12, 12), mean=mean, std=STD
    )
    generator = torch.Generator().manual_seed(7)
    return smoothed.backend.unlike(x + sigma * torch.randn(x.shape, generator=generator))


def test_a_network_that_is_rebuilt_as_it_was_has_nothing_to_say(trained):
    for count in (10, 40):
        assert said(network(), trained, pictures(count, 9)) == ""


WRONG = {
    "LeakyReLU": dict(net=network(activation=partial(nn.LeakyReLU, 0.3))),
    "SiLU": dict(net=network(activation=nn.SiLU)),
    "pooling": dict(net=network(pool=True)),
    "normalisation": dict(net=network(), mean=0.0),
    "noise": dict(net=network(), sigma=1.0),
}


@pytest.mark.parametrize("case", WRONG)
def test_another_activation_pooling_normalisation_or_noise_is_told(trained, case):
    wrong = dict(WRONG[case])

    text = said(wrong.pop("net"), trained, pictures(40, 9), **wrong)

    assert "had in training: over 40 pictures the mean is" in text


def test_too_few_pictures_and_statistics_of_no_training_tell_nothing(trained):
    untrained = network().state_dict()

    assert said(network(pool=True), trained, pictures(9, 9)) == ""
    assert said(network(pool=True), untrained, pictures(40, 9)) == ""


@pytest.mark.usefixtures("unforked")
def test_certify_warns_of_it(trained):
    net = network(pool=True)
    net.load_state_dict(trained)
    smoothed = rrcm.smooth(
        net.eval(), sigma=SIGMA, classes=4, shape=(3, 12, 12), mean=MEAN, std=STD
    )

    with pytest.warns(UserWarning, match="5 has not the mean and variance .* other strides"):
        answers = smoothed.certify(np.asarray(pictures(12, 9)), n=20, n0=5, seed=0, progress=False)

    assert len(answers) == 12
