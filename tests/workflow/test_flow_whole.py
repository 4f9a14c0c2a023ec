"""A stage that is killed twice in a flow ends at its third try, with the bytes of one try."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import screens
from clones import Clones, Service, alive
from workspace import RUN, Workspace

from rrcm.models.trained.base import checkpoint

T = TypeVar("T")
STAGE = f"train@{RUN}"


def until(found: Callable[[], T], *, seconds: float, what: str, every: float = 0.05) -> T:
    """Wait until ``found`` returns something, asked ``every`` so many seconds."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(every)
    return value


def picture(pages: str, known: str, file: Path, *, run: str) -> None:
    """What the pages show of a run, for docs/."""
    with screens.opened(f"{pages}/runs", size=(1500, 1700)) as page:
        page.log_in(known)
        page.go(f"{pages}/runs/flow-run/{run}")
        page.wait("document.body.innerText.includes('Completed')")
        page.picture(file)


def killed(checkout: Workspace, *, ready: int) -> int:
    """kill -9 the stage once it has saved state of step ``ready`` or later; which step that was."""

    def training() -> psutil.Process | None:  # itself, not the shell that DVC runs it through
        for process in psutil.process_iter():
            try:
                if process.cwd() != str(checkout.path):
                    continue
                command = process.cmdline()[1:]
                stage = process.environ().get("DVC_STAGE")
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            if command == ["-m", "pipeline.stages.train"] and stage == STAGE:
                return process
        return None

    process = until(training, seconds=120, what="training")
    until(lambda: step_saved(checkout) >= ready, seconds=120, what=f"state of step {ready}")
    process.kill()
    until(lambda: not process.is_running(), seconds=20, what="end of the killed stage")
    return step_saved(checkout)  # it may have saved once more


def step_saved(checkout: Workspace) -> int:
    """The step of the state that the stage would go on from."""
    for state in checkout.path.glob(f".rrcm/resume/{STAGE}/*/state.safetensors"):
        return json.loads(checkpoint.load(state)[1]["state"])["step"]
    return -1


@pytest.mark.slow
def test_a_stage_killed_twice_goes_on_where_it_was_and_the_run_is_seen(
    checkout: Workspace, tmp_path: Path
):
    def change(params: dict[str, Any]) -> None:
        run = params["runs"][RUN]
        run["loss"].update(lbd=3.0)
        params["recipes"][run["recipe"]].update(epochs=12)  # long enough to be killed twice

    checkout.edit(change)
    lock = (checkout.path / "dvc.lock").read_bytes()
    checkout.run("dvc", "repro", "--single-item", STAGE)
    uninterrupted = checkout.digest(f"models/{RUN}/model.safetensors")
    (checkout.path / "dvc.lock").write_bytes(lock)
    shutil.rmtree(checkout.path / ".dvc/cache/runs")
    team = Clones(tmp_path)
    service = Service(team, checkout, RRCM_SAVE_SECONDS="0")
    run = service.start("rebuild/on-demand", targets=["report"])
    first = killed(checkout, ready=1)
    second = killed(checkout, ready=first + 1)
    assert second > first, "the stage ended before it was killed again"

    def ended() -> dict[str, Any] | None:
        state = service.ask(f"flow_runs/{run}")["state"]
        return state if state["type"] in ("COMPLETED", "FAILED", "CRASHED") else None

    assert until(ended, seconds=180, what="end", every=1)["type"] == "COMPLETED"
    mine = {"flow_runs": {"id": {"any_": [run]}}}
    (table,) = [
        json.loads(each["data"])
        for each in service.ask("artifacts/filter", mine)
        if each["type"] == "table"
    ]
    if folder := os.environ.get("RRCM_SCREENS"):
        picture(service.url.removesuffix("/api"), service.secret, Path(folder, "flow.png"), run=run)
    service.process.terminate()
    assert service.process.wait(60) == 0 and not alive(team)

    note = json.loads((checkout.path / f"provenance/{STAGE}.json").read_text())
    assert [row["tries"] for row in table if row["stage"] == STAGE] == ["3"]
    assert note["resumed_at"] >= second > first > 0
    assert checkout.digest(f"models/{RUN}/model.safetensors") == uninterrupted
    assert "up to date" in checkout.run("dvc", "status")
