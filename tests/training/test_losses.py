"""Losses against their equations, written naively in float64, and against known answers."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rrcm.core.errors import ConfigError
from rrcm.training.engine import distributed
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


def test_info_nce_of_indistinguishable_embeddings_is_log_b():
    z = torch.ones(8, 3)

    torch.testing.assert_close(losses.info_nce(z, z, tau=0.2), torch.full((8,), math.log(8)))


@pytest.mark.parametrize("tau", [0.1, 0.2, 1.0])
def test_info_nce_knows_right_angles_and_opposites(tau):
    orthogonal = torch.eye(4, 9, dtype=torch.float64)
    opposite = torch.tensor([[3.0, 4.0], [-3.0, -4.0]], dtype=torch.float64)

    def one(z, z_pos):
        return losses.info_nce(z, z_pos, tau=tau)[0].item()

    assert one(orthogonal, orthogonal) == pytest.approx(math.log1p(3 * math.exp(-1 / tau)))
    assert one(opposite, opposite) == pytest.approx(math.log1p(math.exp(-2 / tau)))
    assert one(opposite, -opposite) == pytest.approx(math.log1p(math.exp(2 / tau)))


@pytest.mark.parametrize("parts", [2, 4])
def test_info_nce_of_processes_that_share_a_batch_is_that_of_the_whole(parts, monkeypatch):
    """Each process has some rows, and gathers the positives and negatives of all."""
    z, z_pos = embeddings(batch=8)
    expected = losses.info_nce(z, z_pos, tau=0.2)
    rows = [slice(i, i + 8 // parts) for i in range(0, 8, 8 // parts)]

    def of_process(rank):
        monkeypatch.setattr(distributed, "rank", lambda: rank)
        monkeypatch.setattr(distributed, "gather", lambda own: z_pos)
        return losses.info_nce(z[rows[rank]], z_pos[rows[rank]], tau=0.2)

    torch.testing.assert_close(torch.cat([*map(of_process, range(parts))]), expected)


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


@few
@given(st.permutations(range(B)))
def test_info_nce_follows_a_permutation_of_the_batch(order):
    z, z_pos = embeddings()
    loss = losses.info_nce(z, z_pos, tau=0.2)

    torch.testing.assert_close(losses.info_nce(z[order], z_pos[order], tau=0.2), loss[order])
    assert not torch.allclose(losses.info_nce(z, z_pos.roll(1, 0), tau=0.2), loss)


def test_info_nce_does_not_see_lengths():
    z, z_pos = embeddings()
    lengths = torch.linspace(0.1, 10, B, dtype=torch.float64)[:, None]

    longer = losses.info_nce(lengths * z, z_pos / lengths, tau=0.2)

    torch.testing.assert_close(longer, losses.info_nce(z, z_pos, tau=0.2))


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


def test_consistency_with_equal_weights_is_a_cross_entropy_to_the_mean():
    """eta = lbd is the `xent` of the authors' code: KL and entropy of the mean are one term."""
    model = Recorder()
    loss = consistency(model, lbd=3.0, eta=3.0)
    p = (model.x.flatten(1) @ model.weight.T).softmax(dim=1).view(M, B, K)

    right = -p[:, range(B), LABELS].log().mean(dim=0)
    agreed = -(p.mean(dim=0) * p.log()).sum(dim=2).mean(dim=0)

    torch.testing.assert_close(loss, right + 3 * agreed)


def test_consistency_shows_the_model_m_fresh_copies_at_sigma():
    model = Recorder()
    consistency(model, sigma=0.5)

    noise = (model.x.view(M, *images().shape) - images()) / 0.5

    assert model.sigma == 0.5
    assert len(noise.flatten().unique()) == noise.numel(), "a copy repeats another's noise"
    assert noise.std().item() == pytest.approx(1, abs=0.2)


def test_consistency_of_certain_probabilities_is_that_of_their_labels():
    model = Recorder()
    certain = F.one_hot(LABELS, K).double()

    torch.testing.assert_close(consistency(model, y=certain), consistency(model))


def test_consistency_is_linear_in_the_probabilities_of_labels():
    """Half a label costs half its cross-entropy: what mixup asks for."""
    model = Recorder()
    mixed = (F.one_hot(LABELS, K) + F.one_hot(LABELS.flip(0), K)).double() / 2
    one, other = consistency(model), consistency(model, y=LABELS.flip(0))

    torch.testing.assert_close(consistency(model, y=mixed), (one + other) / 2)


@few
@given(st.floats(0.0, 100.0), st.integers(2, 4))
def test_consistency_of_identical_copies_is_cross_entropy_and_entropy(lbd, m):
    """Without noise nothing can disagree: lbd and m do not matter."""
    model = Recorder()
    loss = consistency(model, sigma=0.0, lbd=lbd, m=m)
    log_p = F.log_softmax(model.x[:B].flatten(1) @ model.weight.T, dim=1)

    wrong, entropy = F.nll_loss(log_p, torch.arange(B) % K), -(log_p.exp() * log_p).sum(dim=1)

    torch.testing.assert_close(loss.mean(), wrong + 0.5 * entropy.mean())


def test_consistency_of_an_undecided_model_is_log_k():
    """Uniform predictions agree; they cost log K once for the label, and eta times as entropy."""
    loss = consistency(Recorder(scale=0.0), eta=0.25)

    assert loss.tolist() == pytest.approx(B * [1.25 * math.log(K)])


TURNED = [("lbd", 8.0), ("eta", 0.6), ("m", 2), ("measure", "mse")]


@pytest.mark.parametrize(("knob", "value"), TURNED)
def test_every_constant_of_consistency_turns_something(knob, value):
    model = Recorder()

    assert not torch.isclose(consistency(model), consistency(model, **{knob: value})).any()


@pytest.mark.parametrize("measure", ["kl", "mse"])
def test_consistency_survives_certainty(measure):
    """Predictions of exactly 0 and 1 in float: the loss and its gradient stay finite."""
    model = Recorder(scale=1000.0)
    loss = consistency(model, measure=measure)

    (gradient,) = torch.autograd.grad(loss.sum(), model.weight)

    assert loss.isfinite().all() and gradient.isfinite().all()


@pytest.mark.parametrize("m", [1, 0, -2])
def test_agreement_needs_two_copies(m):
    with pytest.raises(ConfigError, match=f"^m: must be at least 2, got {m}$"):
        losses.Consistency(lbd=1.0, eta=1.0, m=m, measure="kl")


@pytest.mark.parametrize("weights", [{"lbd": -1.0}, {"eta": float("inf")}])
def test_disagreement_is_not_rewarded(weights):
    (key,) = weights
    with pytest.raises(ConfigError, match=f"^{key}: must be finite and >= 0, got"):
        losses.Consistency(**{"lbd": 1.0, "eta": 1.0} | weights, m=2, measure="kl")


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


def test_the_class_of_probabilities_is_the_largest():
    assert losses.classes(torch.tensor([[0.2, 0.8], [0.6, 0.4]])).tolist() == [1, 0]
    assert losses.classes(torch.tensor([3, 1])).tolist() == [3, 1]
