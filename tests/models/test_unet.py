"""The UNet as a component: what it starts as, and which shapes it refuses."""

from dataclasses import replace

import pytest
import torch

from rrcm.core.errors import ConfigError
from rrcm.diffusion.networks import unet

TINY = unet.Config(
    channels=2,
    image_size=8,
    width=8,
    mults=[1, 2],
    blocks=1,
    attention=[4],
    head_channels=8,
    groups=4,
    dropout=0.0,
    resample="conv",
    learned_variance=True,
)


def test_an_untrained_network_predicts_zero_and_can_learn_not_to():
    """In the third step at the latest every tensor has a gradient, so that none is stuck at zero.

    But biases of keys, which move all attention scores of a query alike: they do nothing.
    """
    torch.manual_seed(0)
    network, x, told = unet.Network(TINY), torch.randn(3, 2, 8, 8), torch.tensor([0.5, 1.0, 99.0])
    rate = torch.optim.SGD(network.parameters(), lr=0.1)

    assert torch.equal(network(x, told), torch.zeros(3, 4, 8, 8))
    for _ in range(3):
        rate.zero_grad()
        (network(x, told) - 1).square().mean().backward()
        rate.step()

    still = {name for name, p in network.named_parameters() if not p.grad.any()}
    assert {name for name in still if not name.endswith("to_k.bias")} == set()


def test_sides_that_cannot_be_halved_are_refused():
    with pytest.raises(ConfigError, match="sides are multiples of 2, and these have 8 x 7 pixels"):
        unet.Network(TINY)(torch.zeros(1, 2, 8, 7), torch.zeros(1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 6}, "width: must be even and a multiple of groups = 4, got 6"),
        ({"image_size": 7}, "image_size: 7 pixels cannot be halved 1 times"),
        ({"attention": [2]}, r"attention: no level has images of 2 pixels, only \[8, 4\]"),
        ({"attention": [], "head_channels": 3}, "head_channels: 16 channels, which have attention"),
    ],
)
def test_a_shape_that_does_not_come_out_even_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        replace(TINY, **change)
