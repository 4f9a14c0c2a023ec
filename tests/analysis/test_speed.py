"""The figures of speed.csv: what is counted, over what was measured."""

import dataclasses
import json
import types

import pytest
from helpers import MODEL, PRETRAIN, split

from pipeline.runtime import throughput
from rrcm.core.errors import StageError
from rrcm.models.trained.base import classifier
from rrcm.training import pretrain as pretraining


def pretrained(**changed):
    cfg = dataclasses.replace(PRETRAIN, **changed)
    return pretraining.pretrain(pretraining.start(cfg, MODEL), split(64, seed=0), cfg)


def test_operations_are_those_of_the_matrix_products():
    """Of 4 blocks of width 64 on 2 + 4 tokens, the embedding of 4 patches of 16, and the head.

    The last block may be computed for one token only, which lies between the two counts.
    """
    width, tokens = 64, 6

    def block(queries):
        projected = width * width * (2 * tokens + 2 * queries) + 8 * width * width * queries
        return projected + 2 * width * queries * tokens

    rest = 4 * 16 * width + width * 4
    network = classifier.build(MODEL, classes=4, condition="exact", final_norm=True)
    found = throughput.operations(network.train(), (1, 8, 8))

    assert 2 * (3 * block(tokens) + block(1) + rest) <= found <= 2 * (4 * block(tokens) + rest)
    assert network.training


def test_rows_are_noted_where_training_logs_and_go_on_when_resumed(tmp_path, monkeypatch):
    clock = iter([0.0, 10.0, 14.0, 100.0, 103.0, 107.0])
    monkeypatch.setattr(throughput, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(throughput, "peak", lambda precision, device: 1e9)
    monkeypatch.setattr(throughput, "operations", lambda network, size: 1e5)
    training = pretrained(batch_size=50)
    state = training.state

    def meter():
        return throughput.Meter(tmp_path, training)

    def train(meter, steps):
        for _ in range(steps):
            state.step += 1
            if state.step % 10 == 0:
                state.log.append({"step": state.step})
            state.passes = 3.0
            meter.look()
        meter.save()

    train(meter(), 25)
    state.step = 18  # the figures were saved, and the process killed before the weights were
    train(meter(), 12)

    rows = json.loads((tmp_path / throughput.SPEED).read_text())
    assert [row["step"] for row in rows] == [10, 20, 30]
    assert [row["images_per_second"] for row in rows] == pytest.approx([50, 100 / 3, 125])
    assert [row["mfu"] for row in rows] == pytest.approx([0.015, 0.01, 0.0375])
    assert [row["seconds"] for row in rows] == [10, 13, 17]
    assert all(0 < row["memory_gib"] < 100 for row in rows)


def test_tensorboard_has_to_be_there_when_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv(throughput.TENSORBOARD, str(tmp_path))
    monkeypatch.setattr(throughput.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(throughput, "peak", lambda precision, device: 1e9)

    with pytest.raises(StageError, match="RRCM_TENSORBOARD is set: install tensorboard"):
        throughput.Meter(tmp_path, pretrained())
