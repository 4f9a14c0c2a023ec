"""`--precision auto`: what is fastest here of what is allowed, chosen once."""

import json
import shutil
from pathlib import Path

import pytest
from builders import refused
from workspace import RUN, Workspace

from pipeline.cli.main import checkout as project
from rrcm.certification import fastest
from rrcm.certification.votes import records
from rrcm.cli import requests
from rrcm.cli.commands import on_demand
from rrcm.cli.options import Options
from rrcm.core.errors import ConfigError

RATES = {  # noisy images a second, by backend, precision and batch size
    ("torch", "bf16", 64): 700.0,
    ("onnx", "int8", 256): 600.0,
    ("torch", "fp32", 16): 500.0,
    ("onnx", "fp32", 64): 400.0,
    ("lanes", "fp32", 256): 300.0,
}
NAMES = {"CPUExecutionProvider": "onnx", "torch-cpu": "torch", "lanes": "lanes"}
BACKENDS = {}  # by kind, precision and whether the one network is here
ASKED = {"model": "tiny", "sigma": 0.5, "n": 200, "stop": "none", "precision": "auto"}


@pytest.fixture
def measured(checkout: Workspace, monkeypatch) -> list[tuple[str, str, int]]:
    """What was timed, in a checkout on a machine with the speed of `RATES`; 1.0 for all else."""
    timed = []
    precisions: dict[int, str] = {}
    opened = fastest.drawing.backend

    def opening(evaluation, cfg):  # each once, as compiling takes seconds
        key = cfg.backend, cfg.precision, Path(f"models/{RUN}").exists()
        if key not in BACKENDS:
            BACKENDS[key] = opened(evaluation, cfg)
        precisions[id(BACKENDS[key])] = cfg.precision
        return BACKENDS[key]

    def rate(backend, split, size, workers, seconds):
        kind = (NAMES[backend.provider.split()[0]], precisions[id(backend)], size)
        timed.append(kind)
        return RATES.get(kind, 1.0)

    monkeypatch.chdir(checkout.path)
    monkeypatch.setattr(fastest.drawing, "backend", opening)
    monkeypatch.setattr(fastest, "engine_rate", rate)
    return timed


def resolve(**asked) -> requests.Request:
    return project.request(Options(**asked))


def draws(**asked):
    """How the votes of a request are drawn."""
    request = resolve(**ASKED | asked)
    return request.source.opened(request.sample).smoothed.draws


def test_the_fastest_of_what_is_allowed_is_taken(measured, monkeypatch):
    for asked, chosen in (
        ({}, ("torch", "fp32", 16)),
        ({"backend": "lanes"}, ("lanes", "fp32", 256)),
        ({"allow": "int8"}, ("onnx", "int8", 256)),
        ({"allow": "int8,bf16"}, ("torch", "bf16", 64)),
        ({"allow": "int8", "batch_size": 64}, ("onnx", "fp32", 64)),
    ):
        measured.clear()
        found = draws(**asked)

        assert (found.backend, found.precision, found.batch_size) == chosen
        allowed = {"fp32", *asked.get("allow", "").split(",")}
        assert {precision for _, precision, _ in measured} <= allowed
    monkeypatch.setitem(RATES, ("torch", "bf16", 64), 399.0)
    assert draws(allow="bf16").precision == "fp32"  # what is slower is not taken


def test_what_was_measured_is_remembered(measured, capsys):
    first = draws()
    said, count = capsys.readouterr().err, len(measured)

    again = draws()

    assert again == first and len(measured) == count > 0
    assert capsys.readouterr().err == said
    assert "torch fp32, batch 16: 500 noisy images/s; onnx fp32, batch 64: 400" in said
    draws(allow="int8")  # another request
    assert len(measured) > count


def test_rates_are_measured(checkout: Workspace, monkeypatch):
    monkeypatch.chdir(checkout.path)
    monkeypatch.setattr(fastest, "SECONDS", 0.02)

    found = draws(batch_size=16)

    (path,) = fastest.KEPT.glob("*.json")
    rates = json.loads(path.read_text())
    assert {(rate["backend"], rate["precision"]) for rate in rates} == {
        ("lanes", "fp32"),
        ("onnx", "fp32"),
        ("torch", "fp32"),
    }
    assert rates[0]["per_s"] >= rates[1]["per_s"] >= rates[2]["per_s"] > 0
    assert (found.backend, found.batch_size) == (rates[0]["backend"], 16)


def test_a_damaged_memory_is_measured_again(measured):
    first = draws()
    (path,) = fastest.KEPT.glob("*.json")
    whole = path.read_text()
    for damage in (whole[: len(whole) // 2], '[{"backend": "torch"}]'):
        path.write_text(damage)

        assert draws() == first and path.read_text() == whole


def test_a_network_that_is_elsewhere_leaves_its_backend_out(measured):
    shutil.rmtree(f"models/{RUN}")

    assert draws().backend == "onnx"
    with refused(ConfigError, "--precision auto", RUN):
        draws(backend="torch")


def test_votes_are_those_of_the_choice(measured):
    on_demand.certify(resolve(**ASKED, allow="int8"), project)
    (auto,) = Path(".rrcm/votes").glob("*.jsonl")
    named = ASKED | {"backend": "onnx", "precision": "int8", "batch_size": 256}
    request = resolve(**named)

    header, _ = records.read(auto)

    assert header == on_demand.header_of(request, request.source.opened(request.sample))
