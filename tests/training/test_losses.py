"""Losses against their equations, written naively in float64, and against known answers."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rrcm.training.engine.draws import Draws
from rrcm.training.shared import losses

B, M, K = 5, 3, 4
CONSTANTS = {"lbd": 7.0, "eta": 0.5, "m": M, "measure": "kl"}
LABELS = torch.arange(B) % K


def embeddings(seed=0, batch=B, dim=6):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, batch, dim, generator=generator, dtype=torch.float64)


class Recorder(nn.Module):
    """A linear classifier that keeps the copies and the sigma it was shown."""

    def __init__(self, scale=1.0):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        weight = scale * torch.randn(K, 12, generator=generator, dtype=torch.float64)
        self.weight = nn.Parameter(weight)

    def forward(self, x, sigma):
        self.x, self.sigma = x, sigma
        return x.flatten(1) @ self.weight.T


def images():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(B, 3, 2, 2, generator=generator, dtype=torch.float64)


def consistency(model, *, sigma=0.5, y=LABELS, **changed):
    """The loss of the same images, with the same noise, at changed constants."""
    cfg = losses.Consistency(**CONSTANTS | changed)
    arguments = {"sigma": torch.tensor(sigma), "draw": Draws(0, 0), "done": 0.5, "cfg": cfg}
    return losses.consistency(model, images(), y, **arguments)


def naive_consistency(logits, label, *, measure="kl"):
    """Equation 8 for one image: logits of its copies, [m, K]."""
    p = [row.exp() / row.exp().sum() for row in logits]
    mean = sum(p) / M
    loss = -CONSTANTS["eta"] * sum(mean[c] * mean[c].log() for c in range(K))
    for p_i in p:
        apart = {
            "kl": sum(mean[c] * (mean[c] / p_i[c]).log() for c in range(K)),
            "mse": sum((mean[c] - p_i[c]) ** 2 for c in range(K)),
        }
        loss = loss + (-p_i[label].log() + CONSTANTS["lbd"] * apart[measure]) / M
    return loss


@few
@given(st.integers(0, 1000), st.integers(1, 9), st.floats(0.05, 2.0))
def test_info_nce_is_its_equation(seed, batch, tau):
    z, z_pos = embeddings(seed, batch)

    expected = []
    for i in range(batch):
        s = [math.exp(F.cosine_similarity(z[i], z_pos[j], dim=0) / tau) for j in range(batch)]
        expected.append(-math.log(s[i] / sum(s)))

    assert losses.info_nce(z, z_pos, tau=tau).tolist() == pytest.approx(expected, abs=1e-9)


def test_losses_are_computed_in_float32_under_autocast():
    """A bfloat16 product would be off by hundredths, as much as the loss differs between rows."""
    z, z_pos = embeddings().float()
    network = Recorder().float()
    expected = losses.info_nce(z.bfloat16().float(), z_pos, tau=0.2)
    with torch.autocast("cpu", torch.bfloat16):
        found = losses.info_nce(z.bfloat16(), z_pos, tau=0.2)
        agreed = losses.consistency(
            network,
            images().float(),
            LABELS,
            sigma=torch.tensor(0.5),
            draw=Draws(0, 0),
            done=0.5,
            cfg=losses.Consistency(**CONSTANTS),
        )

    torch.testing.assert_close(found, expected)
    assert found.dtype == agreed.dtype == torch.float32


@pytest.mark.parametrize("measure", ["kl", "mse"])
def test_consistency_is_its_equation_with_its_gradient(measure):
    """The gradient too: it flows through the mean prediction."""
    model = Recorder()
    loss = consistency(model, measure=measure)
    copies = (model.x.flatten(1) @ model.weight.T).view(M, B, K)

    expected = [naive_consistency(copies[:, i], i % K, measure=measure) for i in range(B)]
    expected = torch.stack(expected)

    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        *(torch.autograd.grad(each.sum(), model.weight)[0] for each in (loss, expected))
    )


def test_the_logarithm_of_a_mean_of_predictions_survives_what_underflows():
    """Of e^-1000 and e^-1001, both 0 in float: no clamp, and a gradient that is a softmax."""
    log_p = torch.tensor([[[-1000.0]], [[-1001.0]]], dtype=torch.float64, requires_grad=True)
    found = losses.log_mean(log_p)

    (gradient,) = torch.autograd.grad(found, log_p)

    assert found.item() == pytest.approx(-1000 + math.log((1 + math.exp(-1)) / 2))
    assert gradient.flatten().tolist() == pytest.approx([1 / (1 + 1 / math.e), 1 / (1 + math.e)])


def test_cross_entropy_is_torchs_for_classes_and_probabilities():
    log_p = F.log_softmax(torch.randn(M, B, K, dtype=torch.float64), dim=2)
    shares = torch.rand(B, K, dtype=torch.float64)

    for y in (LABELS, shares):
        expected = [F.cross_entropy(each, y, reduction="none") for each in log_p]
        torch.testing.assert_close(losses.cross_entropy(log_p, y), torch.stack(expected))
