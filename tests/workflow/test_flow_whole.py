"""A team's day on one machine: up, scheduled, triggered, killed twice, finished, seen, down."""

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import databases
import httpx
import psutil
import pytest
import screens
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


def processes(checkout: Workspace) -> list[psutil.Process]:
    """Whatever runs in a checkout or was started from it."""
    here, found = str(checkout.path), []
    for process in psutil.process_iter():
        try:
            told = [process.cwd(), *process.environ().get("PYTHONPATH", "").split(":")]
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
        if any(place == here or place.startswith(f"{here}/") for place in told):
            found.append(process)
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


@contextmanager
def up(checkout: Workspace, slots: Path) -> Iterator[httpx.Client]:
    """`rrcm flow up`: a client of its API; stopped as a person would, with nothing left."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        "RRCM_SLOTS_DIR": str(slots),
        "RRCM_SAVE_SECONDS": "0",
        "RRCM_RETRY_SECONDS": "0.5",
    }
    process = checkout.start("rrcm", "flow", "up", "--port", str(port), **environment)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/api", timeout=60) as api:

            def healthy() -> bool:
                assert process.poll() is None, process.communicate()[0]
                return (checkout.path / ".rrcm/prefect/server.json").exists()

            until(healthy, seconds=120, what="server")
            api.auth = (*secret(checkout).split(":"),)
            yield api
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
        assert f"http://127.0.0.1:{port}" in output
        assert processes(checkout) == []
        assert not (checkout.path / ".rrcm/prefect/server.json").exists()
    finally:
        for left in processes(checkout):
            left.kill()


def post(api: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    answer = api.post(path, json=body)
    assert answer.is_success, answer.text
    return answer.json()


def deployment(api: httpx.Client, name: str) -> dict[str, Any]:
    answer = api.get(f"/deployments/name/{name}")
    assert answer.is_success, answer.text
    return answer.json()


def scheduled(api: httpx.Client, name: str) -> int:
    """Switch a deployment's schedule on; how many runs are planned then; and off again."""
    found = deployment(api, name)
    (schedule,) = found["schedules"]
    path = f"/deployments/{found['id']}/schedules/{schedule['id']}"
    planned = {
        "deployments": {"id": {"any_": [found["id"]]}},
        "flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}},
    }
    assert api.patch(path, json={"active": True}).is_success
    try:
        return until(
            lambda: len(post(api, "/flow_runs/filter", planned)), seconds=90, what="planned run"
        )
    finally:
        assert api.patch(path, json={"active": False}).is_success


def secret(checkout: Workspace) -> str:
    """What the server of a checkout asks for."""
    return (checkout.path / ".rrcm/prefect/secret").read_text().strip()


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
        for process in processes(checkout):
            try:
                command = process.cmdline()[1:]
                stage = process.environ().get("DVC_STAGE")
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
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
    databases.place(checkout.path / ".rrcm/prefect")

    with up(checkout, tmp_path / "slots") as api:
        assert scheduled(api, "rebuild/rebuild") > 0

        target = deployment(api, "rebuild/on-demand")
        body = {"parameters": {"targets": ["report"]}, "state": {"type": "SCHEDULED"}}
        run = post(api, f"/deployments/{target['id']}/create_flow_run", body)["id"]
        first = killed(checkout, ready=1)
        second = killed(checkout, ready=first + 1)
        assert second > first, "the stage ended before it was killed again"

        def ended() -> dict[str, Any] | None:
            state = api.get(f"/flow_runs/{run}").json()["state"]
            return state if state["type"] in ("COMPLETED", "FAILED", "CRASHED") else None

        assert until(ended, seconds=180, what="end", every=1)["type"] == "COMPLETED"

        shown = post(api, "/artifacts/filter", {"flow_runs": {"id": {"any_": [run]}}})
        logs = post(api, "/logs/filter", {"logs": {"flow_run_id": {"any_": [run]}}, "limit": 200})
        if folder := os.environ.get("RRCM_SCREENS"):
            pages = str(api.base_url).removesuffix("/api/")
            picture(pages, secret(checkout), Path(folder) / "flow.png", run=run)
        (table,) = [json.loads(each["data"]) for each in shown if each["type"] == "table"]

    note = json.loads((checkout.path / f"provenance/{STAGE}.json").read_text())
    assert [row["tries"] for row in table if row["stage"] == STAGE] == ["3"]
    assert note["resumed_at"] >= second > first > 0
    assert checkout.digest(f"models/{RUN}/model.safetensors") == uninterrupted
    assert "progress" in {each["type"] for each in shown}
    assert any("resuming at step" in line["message"] for line in logs)
    assert "up to date" in checkout.run("dvc", "status")
