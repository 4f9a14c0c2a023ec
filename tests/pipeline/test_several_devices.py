"""A stage on two devices: processes that die take the others along, and nothing is lost."""

import json
import re
import signal
import time

import psutil
import pytest
from workspace import Workspace

from rrcm.core.ending import RETRY

STAGE = "pretrain@tiny"


def begin(place: Workspace, saved: int) -> tuple[psutil.Popen, dict[str, psutil.Process]]:
    """Start the stage; it, and its processes by rank, once ``saved`` states have been saved."""
    stage = place.start(
        "python", "-m", "pipeline.stages.pretrain", DVC_STAGE=STAGE, RRCM_SAVE_SECONDS="0"
    )
    deadline, seen = time.monotonic() + 120, set()
    while len(seen) < saved:
        assert stage.poll() is None, stage.communicate()[0]
        assert time.monotonic() < deadline
        for file in place.path.glob(".rrcm/resume/pretrain@tiny/*/state.safetensors"):
            seen.add(file.stat().st_mtime_ns)
        time.sleep(0.01)
    ranks = {p.environ().get("RANK"): p for p in psutil.Process(stage.pid).children()}
    return stage, {rank: process for rank, process in ranks.items() if rank}


def gone(processes) -> bool:
    return not psutil.wait_procs(processes, timeout=120)[1]


@pytest.mark.slow
def test_killed_processes_resume_to_the_same_bytes(checkout: Workspace):
    """First one of the two is killed, then the stage is told to stop; then one fails by itself."""
    place = checkout
    place.edit(lambda p: p["pretrain"]["tiny"]["compute"].update(devices=2))
    place.edit(lambda p: p["pretrain"]["tiny"].update(steps=40))
    place.stage(STAGE)
    note = json.loads((place.path / "provenance/pretrain@tiny.json").read_text())
    uninterrupted = place.digest("pretrained/*/*")
    assert (note["devices"], note["resumed_at"]) == (2, 0)
    for file in uninterrupted:
        (place.path / file).unlink()

    stage, ranks = begin(place, saved=1)
    ranks["1"].kill()
    output, _ = stage.communicate(timeout=300)
    assert stage.returncode == RETRY and gone(ranks.values())
    assert output.splitlines()[-1] == (
        "error: pretrain@tiny: process 1 failed: killed by SIGKILL; the others were stopped, and "
        "what was saved is kept for the same command to go on from"
    )
    assert "Traceback" not in output

    stage, ranks = begin(place, saved=3)
    stage.send_signal(signal.SIGTERM)
    output, _ = stage.communicate(timeout=300)
    assert stage.returncode == RETRY and gone(ranks.values())
    assert output.splitlines()[-1].startswith("error: pretrain@tiny: stopped by SIGTERM")

    assert "resuming at step" in place.stage(STAGE)
    note = json.loads((place.path / "provenance/pretrain@tiny.json").read_text())
    assert note["resumed_at"] > 0
    assert place.digest("pretrained/*/*") == uninterrupted

    place.edit(lambda p: p["pretrain"]["tiny"]["optimizer"].update(lr=2e9))
    output = place.stage(STAGE, fails=True)
    assert re.match(
        "error: pretrain@tiny: process [01] failed: TrainingError: the loss is not finite at step",
        output.splitlines()[-1],
    )
    assert "Traceback" not in output
