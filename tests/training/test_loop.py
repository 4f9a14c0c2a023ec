"""Training: resumed is uninterrupted, and each step does what its schedule says."""

import dataclasses
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import MINI, MODEL, PRETRAIN, Linear, equal, split
from torch import nn
from trainings import finish, resume

from rrcm.config.sections import Mix, Momentum
from rrcm.core.errors import ConfigError, TrainingError
from rrcm.noise import levels, streams
from rrcm.training import finetune
from rrcm.training import pretrain as pretraining
from rrcm.training.engine import loop, schedules
from rrcm.training.engine.computing import Computed
from rrcm.training.engine.draws import Draws
from rrcm.training.engine.inputs import loading, order
from rrcm.training.methods import gaussian
from rrcm.training.objectives import rrcm as objective

SETTING = dataclasses.replace(PRETRAIN.optimizer, lr=0.1, warmup=0.25)  # clips at a norm of 2
CFG = dataclasses.replace(PRETRAIN, steps=12, batch_size=16, seed=3)
RUN = dataclasses.replace(MINI.runs["tiny-gaussian-s050"], seed=3)
RECIPE = dataclasses.replace(MINI.recipes["finetune"], epochs=3, batch_size=16)  # 4 steps each

DATA = {"train": split(64, seed=0), "validation": split(20, seed=1)}  # there is no test split


def begin_loop():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    return loop.State(
        modules={"network": network}, optimizer=torch.optim.AdamW(network.parameters(), fused=True)
    )


def run_loop(state, loss=None, *, steps=12, setting=SETTING, rows=16, accumulate=1, per_epoch=1):
    """A training on images of nothing: what these losses see, they draw."""
    nothing = np.zeros((per_epoch * rows, 4), np.uint8)
    network = state.modules["network"]

    def drawn(batch, draw):
        return {"fit": network(draw.normal(batch.views["x"])).square().sum(dim=1)}

    return loop.Training(
        state=state,
        called=[Computed(network, PRETRAIN.compute)],
        loss=loss or drawn,
        split=dataclasses.replace(DATA["train"], images=nothing, labels=np.zeros(len(nothing))),
        augment={"x": []},
        where="",
        steps=steps,
        batch_size=rows,
        optimizer=setting,
        compute=dataclasses.replace(PRETRAIN.compute, accumulate=accumulate),
        seed=0,
    )


def start_train(**changed):
    return finetune.start(RUN, dataclasses.replace(RECIPE, **changed), MODEL, classes=4)


def run_train(state, method=gaussian, **changed):
    return finetune.train(state, method, DATA, RUN, dataclasses.replace(RECIPE, **changed))


PROCEDURES = {
    "loop": (begin_loop, run_loop),
    "pretrain": (
        lambda: pretraining.start(CFG, MODEL),
        lambda state: pretraining.pretrain(state, DATA["train"], CFG),
    ),
    "train": (start_train, run_train),
}


@pytest.mark.parametrize("procedure", PROCEDURES)
def test_resumed_is_uninterrupted_bit_for_bit(procedure, tmp_path):
    """Weights, buffers, moments, best weights and log: all that the file of a state holds."""
    resume(*PROCEDURES[procedure], tmp_path, at=7)


def descend(slope, *, steps=1, **changed):
    """Weights [3] from 0 under plain SGD on ``slope`` times their sum, and the state, each step."""
    network = nn.ParameterList([torch.zeros(3)])
    (weights,) = network
    state = loop.State(
        modules={"network": network}, optimizer=torch.optim.SGD([{"params": [weights]}])
    )
    setting = dataclasses.replace(SETTING, **{"lr": 1.0, "warmup": 0.0} | changed)

    def loss(batch, draw):
        return {"first": slope * weights.sum()[None] / 2, "second": slope * weights * 3 / 2}

    for each in run_loop(state, loss, steps=steps, setting=setting):
        yield weights.detach().clone(), each


def rates(setting, *, steps, per_epoch=1):
    """Learning rates of two groups, one of which is scaled by a half, at every step."""
    layers = nn.Linear(2, 2)
    groups = [{"params": [layers.weight], "lr_scale": 0.5}, {"params": [layers.bias]}]
    state = loop.State(modules={"network": layers}, optimizer=torch.optim.SGD(groups, lr=1.0))

    def loss(batch, draw):
        return {"loss": layers(torch.ones(1, 2))}

    states = run_loop(state, loss, steps=steps, setting=setting, per_epoch=per_epoch)
    return [[group["lr"] for group in each.optimizer.param_groups] for each in states]


def test_each_group_learns_at_the_schedule_times_its_scale():
    shares = [schedules.warmup_cosine(step, steps=8, warmup=2) for step in range(8)]  # 0.25 of 8

    assert rates(SETTING, steps=8) == [[0.5 * 0.1 * share, 0.1 * share] for share in shares]


def test_a_longer_horizon_leaves_the_rate_high():
    """The reference fine-tunes 50 epochs on a cosine of 150, and so ends at 0.78 of the peak."""
    setting = dataclasses.replace(SETTING, lr=1.0, warmup=0.1, horizon=3.0)

    last = rates(setting, steps=50)[-1][1]

    assert last == 0.5 * (1 + math.cos(math.pi * (49 - 5) / (150 - 5)))
    assert last == pytest.approx(0.78, abs=0.01)


def test_a_rate_that_rises_by_epochs_loses_the_first():
    setting = dataclasses.replace(SETTING, lr=1.0, warmup=0.25, warmup_by="epoch")

    found = [rate for _, rate in rates(setting, steps=16, per_epoch=2)]

    assert found[:4] == [0, 0, 0.5, 0.5]
    assert found[4:] == [schedules.warmup_cosine(step, steps=16, warmup=4) for step in range(4, 16)]


def test_a_rate_with_milestones_falls_at_each_and_has_no_cosine():
    """Cohen et al. (2019): a tenth after a third of the epochs, and again after another."""
    setting = dataclasses.replace(SETTING, lr=1.0, warmup=0.25, milestones=[0.5, 0.75], gamma=0.1)

    found = [rate for _, rate in rates(setting, steps=8)]

    assert found == pytest.approx([0.5, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])


def test_clipping_may_wait_for_the_end_of_the_warm_up():
    def lengths(**changed):
        path = [torch.zeros(3), *(w for w, _ in descend(100.0, steps=4, warmup=0.5, **changed))]
        steps = [(b - a).norm().item() for a, b in itertools.pairwise(path)]
        return [length / rate for length, rate in zip(steps, [0.5, 1.0, 1.0, 0.5], strict=True)]

    gradient = 100 * math.sqrt(3)
    assert lengths(clip_warmup=True) == pytest.approx([2, 2, 2, 2], rel=1e-4)
    assert lengths(clip_warmup=False) == pytest.approx([gradient, gradient, 2, 2], rel=1e-4)
    assert lengths(clip=math.inf) == pytest.approx(4 * [gradient])


def test_the_loss_is_the_sum_of_its_terms_each_averaged():
    """Logged every ten steps, and at the last; its gradient, before it is clipped."""
    ((weights, state),) = descend(1000.0)
    assert weights.norm().item() == pytest.approx(2.0)
    assert state.log[0]["grad_norm"] == pytest.approx(1000 * math.sqrt(3))
    *_, (_, state) = descend(0.01, steps=23)

    assert [row["step"] for row in state.log] == [10, 20, 23]
    assert [*state.log[0]] == ["step", "lr", "loss", "first", "second", "grad_norm"]
    for row in state.log:
        assert row["loss"] == pytest.approx(row["first"] + row["second"]) != 0


def test_a_loss_that_is_not_finite_stops_training_where_it_is_next_logged():
    state = begin_loop()

    def loss(batch, draw):
        x = draw.normal(batch.views["x"]) * (math.inf if batch.step >= 12 else 1.0)
        return {"fit": state.modules["network"](x).square().sum(dim=1)}

    with pytest.raises(TrainingError, match=r"not finite at step 20 .*lower optimizer\.lr"):
        finish(run_loop(state, loss, steps=40))
    assert [row["step"] for row in state.log] == [10]
    network = nn.ParameterList([torch.zeros(1)])
    state = loop.State(
        modules={"network": network}, optimizer=torch.optim.SGD(network.parameters())
    )

    with pytest.raises(TrainingError, match=r"\(loss 0\.0, gradient norm"):
        finish(run_loop(state, lambda *_: {"root": network[0].sqrt()}, steps=1))


def test_parts_of_a_batch_add_up_to_its_gradient():
    """Every row draws what it would have drawn in the whole batch."""

    def gradient(accumulate):
        torch.manual_seed(0)
        network = nn.Linear(4, 3, dtype=torch.float64)
        state = loop.State(
            modules={"network": network},
            optimizer=torch.optim.SGD([{"params": [*network.parameters()]}]),
        )

        def loss(batch, draw):
            x = draw.normal(batch.views["x"].double())
            seen.append((len(x), len(batch.labels)))
            return {"a": network(x).square().sum(dim=1), "b": draw.uniform(x, 1)[:, 0]}

        finish(run_loop(state, loss, steps=1, rows=12, accumulate=accumulate))
        return {"log": torch.tensor([*state.log[0].values()])} | {
            name: p.grad for name, p in network.named_parameters()
        }

    seen = []
    torch.testing.assert_close(gradient(3), gradient(1))
    assert seen == [(4, 4)] * 3 + [(12, 12)]


def test_parts_of_a_batch_are_equal():
    batch = loading.Batch(step=0, views={}, labels=torch.zeros(16), rows=torch.arange(16))

    with pytest.raises(ConfigError, match=r"compute\.accumulate: 16 images .* in 3 equal parts"):
        loop._backward(nn.Identity(), batch, accumulate=3, seed=0)


def test_the_target_follows_the_online_network():
    """After every step, theta- becomes mu theta- + (1 - mu) theta, with the mu of that step."""
    momentum = Momentum(start=0.5, end=0.9, steepness=10.0, steps=0)
    cfg = dataclasses.replace(CFG, target=momentum)
    state = pretraining.start(cfg, MODEL)
    online, target = (state.modules[name] for name in ("online", "target"))

    expected = {name: x.clone() for name, x in target.named_parameters()}
    for _ in pretraining.pretrain(state, DATA["train"], cfg):
        mu = schedules.ema_momentum(state.step - 1, steps=12, target=momentum)
        for name, x in online.named_parameters():
            expected[name] = mu * expected[name] + (1 - mu) * x.detach()

        torch.testing.assert_close(dict(target.named_parameters()), expected)


def test_pretraining_sees_the_batch_and_the_grid_of_its_step(monkeypatch):
    """And logs the noise level of the pair that the objective compared."""
    cfg = dataclasses.replace(CFG, grid=dataclasses.replace(CFG.grid, sampling="lognormal"))
    seen, pairs = [], []

    def loss(online, target, views, **named):
        seen.append((views, named["levels"], named["weights"]))
        return original(online, target, views, **named)

    def pair(*arguments):
        pairs.append(original_pair(*arguments))
        return pairs[-1]

    original, original_pair = objective.loss, Draws.pair
    monkeypatch.setattr(objective, "loss", loss)
    monkeypatch.setattr(Draws, "pair", pair)
    state = finish(pretraining.pretrain(pretraining.start(cfg, MODEL), DATA["train"], cfg))

    pixels = torch.from_numpy(DATA["train"].pixels())
    assert len(seen) == 12
    for step, (views, grid, weights) in enumerate(seen):
        points = [21, 41, 81][step // 4]
        assert torch.equal(grid, levels.karras_grid(points, t_min=0.002, t_max=80.0, rho=7.0))
        wanted = levels.lognormal_weights(grid, mean=cfg.grid.mean, std=cfg.grid.std)
        assert torch.equal(weights, wanted)
        rows = order.rows(step, shards=(64,), batch_size=16, seed=CFG.seed)
        assert torch.equal(views["plain"], pixels[rows])  # the mini preset leaves it as it is
        assert not torch.equal(views["first"], views["second"])
    for row in state.log:
        grid = seen[row["step"] - 1][1]
        assert row["points"] == len(grid) and row["t"] == grid[pairs[row["step"] - 1]].item()
    assert len(pairs) == 12, "a pair is drawn once a step"


def test_pretraining_wants_the_views_of_its_objective():
    cfg = dataclasses.replace(CFG, augment={"first": [], "plain": []})

    with pytest.raises(ConfigError, match="needs the views first, second, plain; got first, pl"):
        pretraining.pretrain(pretraining.start(cfg, MODEL), DATA["train"], cfg)


def test_pretraining_has_not_moved():
    """Golden of this code, torch 2.13 on a CPU: ten steps on the synthetic split.

    At a low rate: at the preset's, AdamW turns rounding, which differs by processor, into 3 %.
    """
    cfg = dataclasses.replace(CFG, optimizer=dataclasses.replace(CFG.optimizer, lr=3e-4))
    states = pretraining.pretrain(pretraining.start(cfg, MODEL), DATA["train"], cfg)

    (row,) = next(state.log for state in states if state.step == 10)

    assert [row[name] for name in ("contrast", "consistency", "grad_norm")] == pytest.approx(
        [2.18248, 2.16771, 6.21493], rel=1e-3
    )


@pytest.mark.parametrize("augment", [[], [{"gain": {"amount": 0.5}}]], ids=str)
def test_training_sees_the_labelled_batch_of_its_step(augment):
    seen = spy(augment=augment)

    pixels = torch.from_numpy(DATA["train"].pixels())
    labels = torch.from_numpy(DATA["train"].labels)
    assert len(seen) == 12
    for step, (x, y, sigma, done) in enumerate(seen):
        rows = order.rows(step, shards=(64,), batch_size=16, seed=RUN.seed)
        assert torch.equal(y, labels[rows]) and sigma == RUN.sigma and done == step / 12
        assert torch.equal(x, pixels[rows]) != bool(augment)


def spy(**changed):
    """The images, labels, sigma and share done that a method is given, step by step."""
    seen = []

    def loss(model, x, y, *, sigma, draw, done, cfg):
        seen.append((x, y, sigma, done))
        return gaussian.loss(model, x, y, sigma=sigma, draw=draw, done=done, cfg=cfg)

    method = SimpleNamespace(Config=gaussian.Config, loss=loss)
    finish(run_train(start_train(), method, **changed))
    return seen


def test_images_and_labels_are_mixed_alike():
    """A label's share is its image's: here, of pixels that came from either partner."""
    mix = Mix(mixup=0.0, cutmix=1.0, prob=1.0, switch=0.5, smoothing=0.0)

    for (x, y, *_), (plain, labels, *_) in zip(spy(mix=mix), spy(), strict=True):
        own = (x == plain).flatten(1).double().mean(dim=1)
        assert y.shape == (16, 4) and torch.allclose(y.sum(dim=1), torch.ones(16))
        share = y.gather(1, labels[:, None])[:, 0]
        assert (own >= share - 1e-6)[share < 1].all(), "pixels may agree by chance, not differ"


def test_without_epochs_the_weights_are_those_at_the_start():
    state = start_train()
    before = {name: x.clone() for name, x in state.modules["classifier"].state_dict().items()}

    assert [*run_train(state, epochs=0)] == []

    assert equal(state.best, before)
    assert 0 < state.best_score < 1


@pytest.mark.parametrize(
    ("selection", "scores", "kept"), [("validation", [0.5, 0.9, 0.9, 0.3], 2), ("last", [0.7], 3)]
)
def test_the_weights_of_the_selected_epoch_are_kept(monkeypatch, selection, scores, kept):
    """The last of the best; where nothing selects, the last of all, and it is scored once."""
    left = iter(scores)
    monkeypatch.setattr(finetune, "accuracy", lambda *_, **named: next(left))
    state = start_train()

    after = [
        {name: tensor.clone() for name, tensor in state.modules["classifier"].state_dict().items()}
        for _ in run_train(state, epochs=4, selection=selection)
        if state.step % 4 == 0
    ]

    assert state.best_score == max(scores)
    assert [equal(state.best, weights) for weights in after] == [i == kept for i in range(4)]


def test_accuracy_is_the_share_of_noisy_copies_that_are_right(monkeypatch):
    """Each image meets its own draws, those of the validation stream, in evaluation mode."""
    monkeypatch.setattr(finetune, "EVALUATION_BATCH", 7)
    torch.manual_seed(0)
    network, split, sigma = Linear(64, 4).train(), DATA["validation"], torch.tensor(0.5)
    network.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    modes = []

    right = 0
    for i, (x, label) in enumerate(
        zip(torch.from_numpy(split.pixels()), split.labels, strict=True)
    ):
        for draw in range(3):
            z = streams.gaussian(
                9, torch.tensor([i]), torch.tensor([draw]), (1, 8, 8), stream=streams.VALIDATE
            )
            right += int(network.linear((x + sigma * z).flatten(1)).argmax() == label)

    assert finetune.accuracy(network, split, sigma, draws=3, seed=9) == right / 60
    assert 0 < right < 60
    assert not any(modes) and network.training


@pytest.mark.parametrize(("head", "moves"), [("trainable", True), ("frozen", False)])
def test_only_a_frozen_head_stays_where_it_started(head, moves):
    state = start_train(head=head)
    network = state.modules["classifier"]
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}

    next(iter(run_train(state, head=head)))

    for name, p in network.named_parameters():
        assert torch.equal(p, before[name]) != (moves or not name.startswith("head")), name


def scales(state):
    """Learning rate scale of each parameter of a classifier, by name."""
    names = {id(p): name for name, p in state.modules["classifier"].named_parameters()}
    groups = state.optimizer.param_groups
    return {names[id(p)]: group["lr_scale"] for group in groups for p in group["params"]}


def test_layers_learn_more_slowly_towards_the_input():
    """Head and norm at full rate, the last of four blocks at 0.8, the embeddings at 0.8^5."""
    found = scales(start_train())

    depth = {"encoder.cls_token": 0, "encoder.pos_embed": 0, "encoder.patch_embed.proj.weight": 0}
    depth |= {f"encoder.blocks.{i}.mlp.fc1.weight": i + 1 for i in range(4)}
    depth |= {"encoder.norm.weight": 5, "head.weight": 5}
    assert {name: found[name] for name in depth} == pytest.approx(
        {name: 0.8 ** (5 - i) for name, i in depth.items()}
    )


@pytest.mark.parametrize("procedure", ["train", "pretrain"])
def test_weights_decay_but_not_biases_norms_and_embeddings(procedure):
    optimizer = dataclasses.replace(SETTING, weight_decay=0.5)
    if procedure == "train":
        state = start_train(optimizer=optimizer)
    else:
        state = pretraining.start(dataclasses.replace(CFG, optimizer=optimizer), MODEL)

    for group in state.optimizer.param_groups:
        for p in group["params"]:
            assert group["weight_decay"] == (0.5 if p.ndim in (2, 4) else 0.0), p.shape
