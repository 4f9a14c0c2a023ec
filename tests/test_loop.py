"""Training: resumed is uninterrupted, and each step does what its schedule says."""

import dataclasses
import functools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import MINI, MODEL, PRETRAIN, Linear, equal
from torch import nn

from rrcm import batches, loop, noise, schedules, train
from rrcm import pretrain as pretraining
from rrcm.config import Momentum, Optimizer
from rrcm.errors import CheckpointError, TrainingError
from rrcm.methods import gaussian
from rrcm.objectives import rrcm as objective
from rrcm.shards import Split

SETTING = Optimizer(lr=0.1, weight_decay=0.0, warmup=0.25, clip=2.0)
CFG = dataclasses.replace(PRETRAIN, steps=12, batch_size=16, seed=3)
RUN = dataclasses.replace(MINI.runs["tiny-gaussian-s050"], seed=3)
RECIPE = dataclasses.replace(MINI.recipes["finetune"], epochs=3, batch_size=16)  # 4 steps each


def split(images, seed):
    """Noisy digits of a kind: class c is bright in two rows of its own."""
    rng = np.random.default_rng(seed)
    labels = np.arange(images) % 4
    pixels = rng.integers(0, 6, size=(images, 1, 8, 8))
    for i, c in enumerate(labels):
        pixels[i, :, 2 * c : 2 * c + 2] += 11
    return Split(
        idx=np.arange(images),
        images=pixels.astype(np.uint8),
        labels=labels,
        classes=("a", "b", "c", "d"),
        white=16,
    )


DATA = {"train": split(64, seed=0), "validation": split(20, seed=1)}  # there is no test split


def begin_loop():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    return loop.State(
        modules={"network": network}, optimizer=torch.optim.AdamW(network.parameters(), fused=True)
    )


def run_loop(state):
    def loss(step):
        return {"fit": state.modules["network"](torch.randn(16, 4)).square().sum(dim=1)}

    return loop.train(state, loss, steps=12, optimizer=SETTING, seed=0)


def start_train(**changed):
    return train.start(RUN, dataclasses.replace(RECIPE, **changed), MODEL, classes=4)


def run_train(state, method=gaussian, **changed):
    return train.train(state, method, DATA, RUN, dataclasses.replace(RECIPE, **changed))


PROCEDURES = {
    "loop": (begin_loop, run_loop),
    "pretrain": (
        lambda: pretraining.start(CFG, MODEL),
        lambda state: pretraining.pretrain(state, DATA["train"], CFG),
    ),
    "train": (start_train, run_train),
}


def finish(states):
    for state in states:  # noqa: B007 (the last one is wanted)
        pass
    return state


@functools.cache
def uninterrupted(procedure):
    begin, run = PROCEDURES[procedure]
    return finish(run(begin()))


@pytest.mark.parametrize("procedure", PROCEDURES)
@pytest.mark.parametrize("stop", [1, 4, 7, 11])
def test_resumed_is_uninterrupted_bit_for_bit(procedure, stop, tmp_path):
    """Weights, buffers, moments, best weights and log: all that the file of a state holds."""
    begin, run = PROCEDURES[procedure]
    interrupted = next(state for state in run(begin()) if state.step == stop)
    interrupted.save(tmp_path / "interrupted")
    torch.manual_seed(666)  # whatever happens in between

    resumed = begin()
    assert resumed.resume(tmp_path / "interrupted")
    finish(run(resumed)).save(tmp_path / "resumed")
    uninterrupted(procedure).save(tmp_path / "uninterrupted")

    same = (tmp_path / "resumed").read_bytes() == (tmp_path / "uninterrupted").read_bytes()
    assert same, "resuming changed the run"


def test_a_saved_state_is_the_state(tmp_path):
    state, again = uninterrupted("train"), start_train()
    state.save(tmp_path / "state")

    again.resume(tmp_path / "state")

    assert (again.step, again.log, again.best_score) == (12, state.log, state.best_score)
    assert equal(again.best, state.best)
    assert equal(again.modules["classifier"].state_dict(), state.modules["classifier"].state_dict())
    for i, moments in state.optimizer.state_dict()["state"].items():
        assert equal(again.optimizer.state_dict()["state"][i], moments)


def test_without_a_file_there_is_nothing_to_resume(tmp_path):
    state = begin_loop()

    assert not state.resume(tmp_path / "absent")
    assert (state.step, state.log) == (0, [])


def test_a_damaged_state_is_refused(tmp_path):
    path = tmp_path / "state"
    begin_loop().save(path)
    path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(CheckpointError, match="damaged"):
        begin_loop().resume(path)


def descend(slope, *, steps=1, **changed):
    """Weights [3] from 0 under plain SGD on ``slope`` times their sum, and the state, each step."""
    weights = nn.Parameter(torch.zeros(3))
    state = loop.State(modules={}, optimizer=torch.optim.SGD([{"params": [weights]}]))
    setting = dataclasses.replace(SETTING, lr=1.0, warmup=0.0, **changed)

    def loss(step):
        return {"first": slope * weights.sum()[None] / 2, "second": slope * weights * 3 / 2}

    for each in loop.train(state, loss, steps=steps, optimizer=setting, seed=0):
        yield weights.detach().clone(), each


def test_each_group_learns_at_the_schedule_times_its_scale():
    layers = nn.Linear(2, 2)
    groups = [{"params": [layers.weight], "lr_scale": 0.5}, {"params": [layers.bias]}]
    state = loop.State(modules={}, optimizer=torch.optim.SGD(groups, lr=1.0))
    states = loop.train(
        state, lambda _: {"loss": layers(torch.ones(1, 2))}, steps=8, optimizer=SETTING, seed=0
    )

    rates = [[group["lr"] for group in each.optimizer.param_groups] for each in states]

    shares = [schedules.warmup_cosine(step, steps=8, warmup=2) for step in range(8)]  # 0.25 of 8
    assert rates == [[0.5 * 0.1 * share, 0.1 * share] for share in shares]


@pytest.mark.parametrize(("slope", "length"), [(1000.0, 2.0), (0.1, 0.1 * math.sqrt(3))])
def test_a_long_gradient_is_clipped_and_a_short_one_is_not(slope, length):
    ((weights, state),) = descend(slope)

    assert weights.norm().item() == pytest.approx(length)
    assert state.log[0]["grad_norm"] == pytest.approx(slope * math.sqrt(3)), "logged unclipped"


def test_the_loss_is_the_sum_of_its_terms_each_averaged():
    """Logged every ten steps, and at the last."""
    *_, (_, state) = descend(0.01, steps=23)

    assert [row["step"] for row in state.log] == [10, 20, 23]
    assert [*state.log[0]] == ["step", "lr", "loss", "first", "second", "grad_norm"]
    for row in state.log:
        assert row["loss"] == pytest.approx(row["first"] + row["second"]) != 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_training_where_it_is_next_logged(bad):
    state = begin_loop()

    def loss(step):
        x = torch.randn(16, 4) * (bad if step >= 12 else 1.0)
        return {"fit": state.modules["network"](x).square().sum(dim=1)}

    with pytest.raises(TrainingError, match=r"not finite at step 20 .*lower optimizer\.lr"):
        finish(loop.train(state, loss, steps=40, optimizer=SETTING, seed=0))
    assert [row["step"] for row in state.log] == [10]


def test_a_gradient_that_is_not_finite_stops_training_too():
    weight = nn.Parameter(torch.zeros(1))
    state = loop.State(modules={}, optimizer=torch.optim.SGD([weight]))

    with pytest.raises(TrainingError, match=r"\(loss 0\.0, gradient norm"):
        finish(
            loop.train(state, lambda _: {"root": weight.sqrt()}, steps=1, optimizer=SETTING, seed=0)
        )


def test_the_target_follows_the_online_parameters():
    """After every step, theta- becomes mu theta- + (1 - mu) theta, with the mu of that step."""
    cfg = dataclasses.replace(CFG, target=Momentum(start=0.5, end=0.9, steepness=10.0))
    state = pretraining.start(cfg, MODEL)
    online, target = (state.modules[name] for name in ("online", "target"))
    expected = {name: p.clone() for name, p in target.named_parameters()}

    for _ in pretraining.pretrain(state, DATA["train"], cfg):
        mu = schedules.ema_momentum(state.step - 1, steps=12, start=0.5, end=0.9, steepness=10.0)
        for name, p in online.named_parameters():
            expected[name] = mu * expected[name] + (1 - mu) * p.detach()

        torch.testing.assert_close(dict(target.named_parameters()), expected)


def test_pretraining_sees_the_batch_and_the_grid_of_its_step(monkeypatch):
    """And only the views are augmented: the mini preset declares nothing for the plain image."""
    seen = []

    def loss(online, target, x, **named):
        assert named["plain"](x) is x and not torch.equal(named["view"](x), x)
        seen.append((x, named["sigmas"]))
        return original(online, target, x, **named)

    original = objective.loss
    monkeypatch.setattr(objective, "loss", loss)
    finish(pretraining.pretrain(pretraining.start(CFG, MODEL), DATA["train"], CFG))

    pixels = torch.from_numpy(DATA["train"].pixels())
    assert len(seen) == 12
    for step, (x, sigmas) in enumerate(seen):
        grid = schedules.karras_grid([21, 41, 81][step // 4], t_min=0.002, t_max=80.0, rho=7.0)
        torch.testing.assert_close(sigmas, (grid / 2).float())
        rows = batches.rows(step, images=64, batch_size=16, seed=CFG.seed)
        assert torch.equal(x, pixels[rows])


def test_pretraining_starts_with_the_target_at_the_online_network():
    state = pretraining.start(CFG, MODEL)

    assert equal(*(module.state_dict() for module in state.modules.values()))
    assert not any(p.requires_grad for p in state.modules["target"].parameters())


def test_pretraining_has_not_moved():
    """Golden of this code, torch 2.13 on a CPU: ten steps on the synthetic split.

    At a low rate: at the preset's, AdamW turns rounding, which differs by processor, into 3 %.
    """
    cfg = dataclasses.replace(CFG, optimizer=dataclasses.replace(CFG.optimizer, lr=3e-4))
    states = pretraining.pretrain(pretraining.start(cfg, MODEL), DATA["train"], cfg)

    (row,) = next(state.log for state in states if state.step == 10)

    assert [row[name] for name in ("contrast", "consistency", "grad_norm")] == pytest.approx(
        [2.38157, 2.27095, 7.11686], rel=1e-3
    )


@pytest.mark.parametrize("augment", [[], [{"gain": {"amount": 0.5}}]], ids=str)
def test_training_sees_the_labelled_batch_of_its_step(augment):
    seen = []

    def loss(model, x, y, *, sigma, cfg):
        seen.append((x, y, sigma))
        return gaussian.loss(model, x, y, sigma=sigma, cfg=cfg)

    method = SimpleNamespace(Config=gaussian.Config, loss=loss)
    finish(run_train(start_train(), method, augment=augment))

    pixels = torch.from_numpy(DATA["train"].pixels())
    labels = torch.from_numpy(DATA["train"].labels)
    assert len(seen) == 12
    for step, (x, y, sigma) in enumerate(seen):
        rows = batches.rows(step, images=64, batch_size=16, seed=RUN.seed)
        assert torch.equal(y, labels[rows]) and sigma == RUN.sigma
        assert torch.equal(x, pixels[rows]) != bool(augment)


def test_the_last_of_the_best_epochs_is_kept(monkeypatch):
    scores = iter([0.5, 0.9, 0.9, 0.3])
    monkeypatch.setattr(train, "accuracy", lambda *_, **named: next(scores))
    state = start_train()

    after = [
        {name: tensor.clone() for name, tensor in state.modules["classifier"].state_dict().items()}
        for _ in run_train(state, epochs=4)
        if state.step % 4 == 0
    ]

    assert state.best_score == 0.9
    assert [equal(state.best, weights) for weights in after] == [False, False, True, False]


def test_selection_reads_the_validation_split(monkeypatch):
    """`DATA` has no test split that training could read."""
    scored = []
    monkeypatch.setattr(train, "accuracy", lambda _, split, *__, **named: scored.append(split) or 0)

    finish(run_train(start_train()))

    assert [split is DATA["validation"] for split in scored] == 3 * [True]


def test_accuracy_is_the_share_of_noisy_copies_that_are_right(monkeypatch):
    """Each image meets its own draws, those of the validation stream, in evaluation mode."""
    monkeypatch.setattr(train, "EVALUATION_BATCH", 7)
    torch.manual_seed(0)
    network, split, sigma = Linear(64, 4).train(), DATA["validation"], torch.tensor(0.5)
    network.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    modes = []

    right = 0
    for i, (x, label) in enumerate(
        zip(torch.from_numpy(split.pixels()), split.labels, strict=True)
    ):
        for draw in range(3):
            z = noise.gaussian(
                9, torch.tensor([i]), torch.tensor([draw]), (1, 8, 8), stream=noise.VALIDATE
            )
            right += int(network.linear((x + sigma * z).flatten(1)).argmax() == label)

    assert train.accuracy(network, split, sigma, draws=3, seed=9) == right / 60
    assert 0 < right < 60
    assert not any(modes) and network.training


@pytest.mark.parametrize(("head", "moves"), [("trainable", True), ("frozen", False)])
def test_only_a_frozen_head_stays_where_it_started(head, moves):
    state = start_train(head=head)
    network = state.modules["classifier"]
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}

    next(run_train(state, head=head))

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


def test_without_layer_decay_all_layers_learn_alike():
    found = scales(start_train(layer_decay=1.0))

    assert {*found.values()} == {1.0}
    assert found.keys() == dict(start_train().modules["classifier"].named_parameters()).keys()


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
