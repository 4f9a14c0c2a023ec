"""`rrcm certify` at work: shares, budgets and deaths leave the votes of one process."""

import dataclasses
import os
import random
import re
import signal
import time

import pytest
from builders import Clock, refusal
from workspace import RUN, Workspace

from pipeline.cli.main import checkout as project
from rrcm.certification import certify
from rrcm.certification.sampling import sampler
from rrcm.certification.votes import records
from rrcm.cli.commands import on_demand
from rrcm.cli.options import Options

COMMAND = ("rrcm", "certify", "--model", "tiny", "--sigma", "0.5", "--n", "300")


def drawn(checkout: Workspace) -> bytes:
    """The one votes file of what was asked for, once all of it is there."""
    (path,) = (
        p for p in checkout.path.glob(".rrcm/votes/*.jsonl") if records.read(p)[0].shard == "1/1"
    )
    return path.read_bytes()


def test_a_share_that_is_none_takes_one_line(finished: Workspace):
    said = refusal(finished.path, *COMMAND, "--shard", "3/2")

    assert said == "error: shard: expected i/k with 1 <= i <= k, such as 1/4, got '3/2'"


def test_nothing_is_started_for_what_cannot_be_certified(checkout: Workspace):
    (checkout.path / f"onnx/{RUN}.onnx").unlink()
    (checkout.path / f"onnx/{RUN}.onnx").write_text("not a network")

    said = refusal(checkout.path, *COMMAND)

    assert len(said.splitlines()) == 1 and "no ONNX file that can run" in said
    assert not [*checkout.path.glob("results/*")]


def test_a_function_and_a_certificate_are_chosen_on_the_command_line(
    checkout: Workspace, monkeypatch
):
    monkeypatch.chdir(checkout.path)
    asked = {"model": "tiny", "sigma": 0.5, "n": 200, "backend": "torch", "precision": "bf16"}

    on_demand.certify(
        project.request(Options(**asked, certificate="two_class", stop="none")), project
    )

    header, _ = records.read(next(checkout.path.glob(".rrcm/votes/*.jsonl")))
    assert (header.backend, header.precision, header.certificate) == ("torch", "bf16", "two_class")
    (table,) = checkout.path.glob("results/*.csv")  # not where the usual request has its own
    assert re.search("-n200-none-[0-9a-f]{8}-two_class-a0.001$", table.stem)


@pytest.mark.usefixtures("one_batch_a_task")
def test_a_budget_ends_soundly_and_says_so(checkout: Workspace, monkeypatch):
    """A thousand looks at the clock, one for each batch, however fast the machine draws."""
    monkeypatch.chdir(checkout.path)
    monkeypatch.setattr(sampler, "time", Clock(0.002))
    options = {"model": "tiny", "sigma": 0.5, "n": 4_000_000, "budget": "2s"}

    request = project.request(Options(**options))
    on_demand.certify(dataclasses.replace(request, budget_start=0.0), project)  # of that clock

    header, _ = records.read(next(checkout.path.glob(".rrcm/votes/*.jsonl")))
    table = certify.read(next(checkout.path.glob("results/*.csv")))
    left = table[table["stop"] == "budget"]
    assert header.budget == 2 and len(left) > 0
    assert (table["n"] < header.n).all() and table["n"].sum() > 0
    assert (left.loc[left["n"] == 0, "predict"] == -1).all()


@pytest.mark.slow
def test_sampling_killed_many_times_ends_with_the_same_votes(checkout: Workspace):
    """kill -9 at a random instant after the journal has grown, during one sampling."""
    kills, draws = 4, "8000"
    command = ("rrcm", "certify", "--model", "tiny", "--sigma", "0.5", "--stop", "none")
    checkout.run(*command, "--n", draws)
    uninterrupted = drawn(checkout)
    for path in checkout.path.glob(".rrcm/votes/*"):
        path.unlink()

    def journal() -> list[int]:
        return [path.stat().st_size for path in checkout.path.glob(".rrcm/votes/*.journal")]

    for _ in range(kills):
        before = journal()
        process = checkout.start(*command, "--n", draws, RRCM_SAVE_SECONDS="0")
        deadline = time.monotonic() + 300
        while journal() == before:
            assert process.poll() is None and time.monotonic() < deadline, "nothing left to kill"
            time.sleep(0.005)
        time.sleep(random.random() * 0.1)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert journal(), "it was done before the last kill"
    checkout.run(*command, "--n", draws)

    assert drawn(checkout) == uninterrupted
