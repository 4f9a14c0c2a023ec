"""`rrcm certify` at work: what options choose, and deaths leave the votes of one process."""

import os
import random
import re
import signal
import time

import pytest
from workspace import Workspace

from pipeline.cli.main import checkout as project
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
