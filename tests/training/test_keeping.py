"""What methods keep of training images: tables of a teacher, weights, and images left out."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from builders import refused
from helpers import MINI, MODEL, Linear, split
from trainings import finish, resume

from rrcm.core.errors import ConfigError, TrainingError
from rrcm.models.trained.base import classifier
from rrcm.noise import streams
from rrcm.training import finetune
from rrcm.training.engine.inputs import order
from rrcm.training.methods import catrs, gaussian, reweighting

RECIPE = dataclasses.replace(MINI.recipes["scratch"], epochs=5, batch_size=16)  # 4 steps each
DATA = {"train": split(64, seed=0), "validation": split(20, seed=1)}
LOSSES = {
    "gaussian": {},
    "catrs": {"lbd": 1.0, "m": 2, "steps": 1, "epsilon": 0.2, "draws": 9},
    "reweighting": {"m": 2, "steps": 1, "step": 0.1, "begin": 0.4, "keep": 0.3, "every": 2},
}
SIGMA = torch.tensor(0.5)


def run_of(name, **changed):
    run = dataclasses.replace(MINI.runs["tiny-gaussian-s050"], method=name, seed=3)
    return dataclasses.replace(run, loss=LOSSES[name] | changed)


def start():
    return finetune.start(run_of("gaussian"), RECIPE, MODEL, classes=4)


def teacher():
    torch.manual_seed(0)
    return Linear(64, 4), SIGMA


def train(state, method, run=None):
    run = run or run_of(method.__name__.rpartition(".")[2])
    return finetune.train(state, method, DATA, run, RECIPE, teacher=teacher())


@pytest.mark.parametrize("at", [1, 9, 12, 13])
@pytest.mark.parametrize("method", [catrs, reweighting], ids=["catrs", "reweighting"])
def test_resumed_is_uninterrupted_with_what_is_kept(method, at, tmp_path):
    """Before, at and after the end of an epoch; the file has the table, and weights."""
    state = resume(start, lambda state: train(state, method), tmp_path, at=at)

    if method is catrs:
        assert state.kept["table"].shape == (64, 4)
    else:
        left = (state.kept["weights"] > 0).sum()
        assert 0 < left < 64, "the test should see images left out"


def test_a_method_that_keeps_nothing_saves_nothing_of_it(tmp_path):
    state = finish(train(start(), gaussian))

    assert not state.kept and train(state, gaussian).before is None


def test_votes_are_those_of_each_image_and_draw_alone(monkeypatch):
    """Whatever images and draws share a batch; the network is in evaluation mode."""
    network, data = Linear(64, 4), DATA["train"]
    rows = torch.tensor([5, 2, 40])
    named = {"draws": 10, "seed": 7, "stream": streams.STEP, "first": 3}
    counts = torch.zeros(3, 4, dtype=torch.int32)
    for i, row in enumerate(rows):
        for draw in range(3, 13):
            z = streams.gaussian(7, row[None], torch.tensor([draw]), (1, 8, 8), stream=streams.STEP)
            x = torch.from_numpy(data.pixels(row[None].numpy()))
            counts[i, network(x + SIGMA * z, SIGMA).argmax()] += 1

    for at_once in (1, 7, 25, 512):
        monkeypatch.setattr(finetune, "EVALUATION_BATCH", at_once)
        assert torch.equal(finetune.votes((network, SIGMA), data, rows, **named), counts)


def test_a_table_is_the_teachers_and_its_rows_are_those_of_the_batch():
    """At the teacher's sigma, and before the first step."""
    seen = []

    def loss(model, x, y, *, sigma, draw, done, cfg, table):
        seen.append((x, table))
        return catrs.loss(model, x, y, sigma=sigma, draw=draw, done=done, cfg=cfg, table=table)

    method = SimpleNamespace(Config=catrs.Config, loss=loss, table=catrs.table)
    state = finish(train(start(), method, run_of("catrs")))
    counts = finetune.votes(teacher(), DATA["train"], draws=9, seed=3, stream=streams.STEP)

    assert torch.equal(state.kept["table"], counts.float() / 9)
    for step, (x, table) in enumerate(seen):
        rows = order.rows(step, shards=(64,), batch_size=16, seed=3)
        assert torch.equal(table, state.kept["table"][rows])
        assert torch.equal(x, torch.from_numpy(DATA["train"].pixels(rows.numpy())))


def test_weights_are_asked_for_once_an_epoch_and_are_its_order():
    asked, seen = [], []

    def weigh(weights, correct, *, epoch, epochs, cfg):
        counts = [correct(5), correct(5), correct(4, torch.tensor([9, 1]))]
        asked.append((epoch, epochs, weights, counts))
        return None if epoch < 2 else torch.eye(64, dtype=torch.float64)[epoch]

    def loss(model, x, y, *, sigma, draw, done, cfg):
        seen.append(x)
        return gaussian.loss(model, x, y, sigma=sigma, draw=draw, done=done, cfg=cfg)

    method = SimpleNamespace(Config=gaussian.Config, loss=loss, weigh=weigh)
    finish(train(start(), method, run_of("gaussian")))

    pixels = torch.from_numpy(DATA["train"].pixels())
    assert [(epoch, epochs) for epoch, epochs, *_ in asked] == [(e, 5) for e in range(5)]
    assert [w if w is None else w.argmax().item() for *_, w, _ in asked] == [None] * 3 + [2, 3]
    for step, x in enumerate(seen):
        if step < 8:
            rows = order.rows(step, shards=(64,), batch_size=16, seed=3)
            assert torch.equal(x, pixels[rows])
        else:
            assert torch.equal(x, pixels[[step // 4] * 16])
    one, other, few = asked[-1][-1]
    assert not torch.equal(one, other), "draws are fresh"
    assert len(few) == 2 and few.max() <= 4 and not torch.equal(one, asked[0][-1][0])


def test_weights_of_reweighting_have_the_values_of_the_paper():
    """From 16 draws; fewer than 12 count as 12. Relative weights are 1, 2.138, …, 7.206."""
    wanted = [0.153703, 0.328618, 0.525655, 0.764878, 1.107515]
    cfg = reweighting.Config(**LOSSES["reweighting"] | {"begin": 0.5, "keep": 0.5})

    def weigh(weights, epoch, counts):
        def correct(draws, rows=None):
            whole = counts[draws]
            return whole if rows is None else whole[rows]

        return reweighting.weigh(weights, correct, epoch=epoch, epochs=9, cfg=cfg)

    screened = torch.tensor([49, 50, 99, 0, 80, 80, 80])
    first = {100: screened, 16: torch.tensor([16, 3, 14, 16, 13, 15, 16])}
    later = {100: 100 - screened, 16: torch.tensor([16, 16, 12, 16, 0, 16, 16])}
    assert weigh(None, 4, first) is None
    weights = weigh(None, 5, first)  # 5 of 9 are the first that are half of them
    expected = [0, wanted[0], wanted[2], 0, wanted[1], wanted[3], wanted[4]]
    assert weights.tolist() == pytest.approx(expected, abs=1e-6)
    assert weigh(weights, 6, later) is weights
    renewed = weigh(weights, 7, later)
    expected = [0, wanted[4], wanted[0], 0, wanted[0], wanted[4], wanted[4]]
    assert renewed.tolist() == pytest.approx(expected, abs=1e-6)


def test_mistakes_are_named(tmp_path):
    """Nothing left to train on, a table without a teacher, a teacher of other classes."""
    with refused(TrainingError, "epoch 0: reweighting leaves out all images", "keep more"):
        finish(train(start(), reweighting, run_of("reweighting", begin=0.0, keep=1.0)))
    with refused(ConfigError, "start: catrs learns from a teacher, got none"):
        finetune.train(start(), catrs, DATA, run_of("catrs"), RECIPE)
    state, config = start(), {"classes": ["a", "b"], "condition": "exact", "final_norm": True}
    network = state.modules["classifier"].state_dict()
    config |= {"classes": ["a", "b", "c", "e"], "sigma": 0.25, "params": {"runs.x": {}}}
    classifier.save(tmp_path, network, model=MODEL, config=config)

    (_, sigma), params = finetune.taught_by(tmp_path, ["a", "b", "c", "e"], "cpu")
    assert sigma == 0.25 and params == {"runs.x": {}}
    with refused(ConfigError, "start: ", "knows the classes a, b, c, e, not a, b, c, d"):
        finetune.taught_by(tmp_path, ["a", "b", "c", "d"], "cpu")
