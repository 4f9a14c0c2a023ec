"""A flow runs what DVC would, as far apart as the graph allows, and tells Prefect all about it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import databases
import httpx
import pytest
from dvc.repo import Repo
from survivors import mark, marked, until
from workspace import ROOT, Workspace

from pipeline.workflow.flow import environment
from pipeline.workflow.flow.server import _status

GRAPH = """
stages:
  root:
    cmd: python work.py root
    outs: [root]
  left:
    cmd: python work.py left right
    deps: [root]
    outs: [left]
  right:
    cmd: python work.py right left
    deps: [root]
    outs: [right]
  flaky:
    foreach: {tiny-rrcm-s050-e050: ''}
    do:
      cmd: python work.py flaky
      deps: [root]
      outs: [flaky]
  wrong:
    cmd: python work.py wrong
    deps: [root, cure]
    outs: [wrong]
  after:
    cmd: python work.py after
    deps: [wrong, left]
    outs: [after]
  last:
    cmd: python work.py last
    deps: [after]
    outs: [last]
"""
WORK = """
import base64, pathlib, signal, sys, time
from rrcm.core import progress
name, *others = sys.argv[1:]
begun = pathlib.Path("begun")
begun.mkdir(exist_ok=True)
with (begun / name).open("a") as tries:
    tries.write("x")
print(f"hello from {name}", flush=True)
if name == "left" or name == "right":  # they meet, so they are at work at once
    deadline = time.monotonic() + 300
    while not (begun / others[0]).exists():
        assert time.monotonic() < deadline, "alone"
        time.sleep(0.02)
if name == "flaky":
    state = pathlib.Path("flaky.state")
    with state.open("a") as saved:
        saved.write("step\\n")
    if state.read_text().count("step") < 3:
        raise ConnectionError("the network is gone")
if name == "wrong" and pathlib.Path("cure").read_text() != "mended":
    print("error: cure: must be mended", file=sys.stderr)
    sys.exit(65)
if name == "slow":
    def save(*_):
        pathlib.Path("slow.state").write_text("saved")
        sys.exit(1)
    signal.signal(signal.SIGTERM, save)
    print("ready", flush=True)
    pathlib.Path("ready").touch()
    time.sleep(0 if pathlib.Path("slow.state").exists() else 120)
progress.SECONDS_BETWEEN_LINES = 0
with progress.bar(4, 0, name, " steps") as bar:
    for _ in range(4):
        bar.update()
pathlib.Path(name).write_text(name)
"""
FLAKY = "flaky@tiny-rrcm-s050-e050"
SLOW = """
stages:
  slow:
    cmd: python work.py slow
    outs: [slow]
  next:
    cmd: cp slow next
    deps: [slow]
    outs: [next]
"""


LEAN = {
    f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false"
    for service in ("SCHEDULER", "LATE_RUNS", "FOREMAN", "TRIGGERS", "PAUSE_EXPIRATIONS")
}


class Api(httpx.Client):
    """A Prefect server, asked."""

    def find(self, what: str, **wanted: Any) -> list[dict[str, Any]]:
        """Rows that a filter leaves."""
        answer = self.post(f"{what}/filter", json=wanted)
        assert answer.is_success, answer.text
        return answer.json()

    def of_run(self, what: str, run: str, **more: Any) -> list[dict[str, Any]]:
        """Rows of a flow run."""
        return self.find(what, flow_runs={"id": {"any_": [run]}}, **more)

    def states(self, run: str) -> dict[str, tuple[str, str, int]]:
        """Type, name and tries of each task; the server hears of them by and by."""
        final = {"COMPLETED", "FAILED", "CANCELLED", "CRASHED"}
        until(
            lambda: all(t["state_type"] in final for t in self.of_run("task_runs", run)), seconds=20
        )
        return {
            task["name"]: (task["state_type"], task["state_name"], task["run_count"])
            for task in self.of_run("task_runs", run)
        }


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Prefect's server, without what only schedules need, and without a secret."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    databases.place(home := tmp_path_factory.mktemp("prefect"))
    settings = {"PREFECT_HOME": str(home), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    command = [sys.executable, "-m", "uvicorn", "--factory", environment.APPLICATION]
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "--port", port], env=os.environ | LEAN | settings, stdout=log, stderr=log
        )
    url = f"http://127.0.0.1:{port}/api/"
    try:
        until(lambda: _status(f"{url}health") == 200 or server.poll() is not None, seconds=120)
        with Api(base_url=url, timeout=300) as client:
            pool = {"name": environment.POOL, "type": "process"}
            assert client.post("work_pools/", json=pool).is_success
            yield client
    finally:
        server.terminate()
        server.wait(timeout=300)


@pytest.fixture(scope="module")
def survivors() -> Iterator[dict[str, str]]:
    """What every process of ours inherits; none is left at the end."""
    marker = mark()
    yield marker
    left = marked(marker)
    for process in left:
        process.kill()
    assert not left


def repository(path: Path, graph: str) -> Workspace:
    path.mkdir()
    Repo.init(str(path), no_scm=True).close()
    shutil.copyfile(ROOT / "tests/mini.yaml", path / "params.yaml")
    (path / "dvc.yaml").write_text(graph)
    (path / "work.py").write_text(WORK)
    (path / "cure").write_text("none yet")
    return Workspace(path)


class Seen:
    """Runs of the flow in one repository: as seen on the terminal, and at the server."""

    def __init__(self, api: Api, here: Workspace, environment: dict[str, str]) -> None:
        self.api, self.here, self.environment = api, here, environment
        self.environment |= {
            "PREFECT_API_URL": str(api.base_url).rstrip("/"),
            "RRCM_SLOTS_DIR": str(here.path.parent / f"slots of {here.path.name}"),
            "RRCM_SLOTS": "2",
            "PYTHONPATH": str(ROOT),
        }
        self.known: set[str] = set()

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return self.here.start("rrcm", "flow", "run", *arguments, **self.environment)

    def run(self, *arguments: str, fails: bool = False) -> tuple[str, dict[str, Any]]:
        """A run to its end: its output, and what the server has of it."""
        known = {run["id"] for run in self.api.find("flow_runs")}
        output = self.here.run("rrcm", "flow", "run", *arguments, fails=fails, **self.environment)
        new = [run for run in self.api.find("flow_runs") if run["id"] not in known]
        assert len(new) == 1, output
        (run,) = new
        return output, run

    def begun(self) -> dict[str, int]:
        """How often each stage's command was started."""
        return {file.name: len(file.read_text()) for file in self.here.path.glob("begun/*")}


@pytest.fixture(scope="module")
def seen(api: Api, survivors: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Seen:
    path = tmp_path_factory.mktemp("flow") / "a repository"
    return Seen(api, repository(path, GRAPH), {**survivors})


@pytest.fixture(scope="module")
def first(seen: Seen) -> tuple[str, dict[str, Any]]:
    """A run in which a stage is flaky and another one wrong."""
    return seen.run(fails=True)


def test_what_does_not_need_a_failed_stage_goes_on_and_what_does_is_not_run(
    api: Api, first: tuple[str, dict[str, Any]]
):
    output, run = first
    states = api.states(run["id"])
    last = output.splitlines()[-1]

    assert {name for name, state in states.items() if state[0] == "COMPLETED"} == {
        *("root", "left", "right", FLAKY)
    }
    assert states["wrong"] == ("FAILED", "Failed", 1)
    assert states["after"][:2] == states["last"][:2] == ("CANCELLED", "Skipped")
    assert run["name"] == "all stages"
    assert (run["state_type"], last) == ("FAILED", f"error: {run['state']['message']}")
    assert last.startswith("error: failed: wrong: cure: must be mended (of 7 stages: ")


def test_a_flaky_stage_is_tried_again_and_goes_on_where_it_was(
    api: Api, seen: Seen, first: tuple[str, dict[str, Any]]
):
    assert api.states(first[1]["id"])[FLAKY][:2] == ("COMPLETED", "Completed")
    assert seen.begun()["flaky"] == 3
    assert (seen.here.path / "flaky.state").read_text() == "step\n" * 3


def test_what_a_stage_prints_is_in_the_log_of_its_task(api: Api, first: tuple[str, dict[str, Any]]):
    tasks = {task["id"]: task["name"] for task in api.of_run("task_runs", first[1]["id"])}
    logs = api.find("logs", logs={"flow_run_id": {"any_": [first[1]["id"]]}}, limit=200)
    said = {(tasks.get(line["task_run_id"]), line["message"]) for line in logs}

    assert {("root", "hello from root"), ("wrong", "error: cure: must be mended")} <= said
    assert any("100%" in message for name, message in said if name == "left")
    assert not any("Traceback" in message for name, message in said if name != FLAKY)


def test_progress_and_the_table_of_stages_are_artifacts(
    api: Api, first: tuple[str, dict[str, Any]]
):
    shown = api.of_run("artifacts", first[1]["id"])
    progress = {one["key"]: one["data"] for one in shown if one["data"] == 100}
    (table,) = [json.loads(one["data"]) for one in shown if one["key"] == "stages"]
    states = {row["stage"]: (row["state"], row["tries"]) for row in table}

    assert {"progress-flaky-tiny-rrcm-s050-e050", "progress-left"} <= progress.keys()
    assert states[FLAKY] == ("done", "3")
    assert states["wrong"] == ("failed", "1"), "its own error: no second try"
    assert states["last"] == ("skipped", "")


def test_only_what_changed_runs_then_nothing_does_and_dvc_agrees(
    api: Api, seen: Seen, first: tuple[str, dict[str, Any]]
):
    (seen.here.path / "cure").write_text("mended")
    before = seen.begun()

    _, run = seen.run("--force", "right")
    states = api.states(run["id"])
    ran = {name for name in seen.begun() if seen.begun()[name] != before.get(name, 0)}
    lock = (seen.here.path / "dvc.lock").read_bytes()
    again = seen.here.run("dvc", "repro")
    (seen.here.path / "dvc.lock").unlink()
    shutil.rmtree(seen.here.path / ".dvc/cache/runs")
    seen.here.run("dvc", "repro", PYTHONPATH=str(ROOT))

    assert ran == {"right", "wrong", "after", "last"}
    assert states["root"][:2] == states["left"][:2] == ("COMPLETED", "Cached")
    assert "up to date" in again, again
    assert (seen.here.path / "dvc.lock").read_bytes() == lock


@pytest.mark.parametrize(
    "how",
    [
        "terminate",
        pytest.param("interrupt twice", marks=pytest.mark.slow),
        pytest.param("cancel", marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_leaves_no_process_and_final_states_and_goes_on(
    api: Api, survivors: dict[str, str], tmp_path: Path, how: str
):
    slow = Seen(api, repository(tmp_path / "slow", SLOW), {**survivors, **mark()})
    known = {run["id"] for run in api.find("flow_runs")}
    process = slow.start()
    until(lambda: (slow.here.path / "ready").exists() or process.poll() is not None)
    (run,) = [run["id"] for run in api.find("flow_runs") if run["id"] not in known]

    if how == "cancel":
        state = {"state": {"type": "CANCELLING"}}
        assert api.post(f"flow_runs/{run}/set_state", json=state).is_success
    elif how == "terminate":
        process.send_signal(signal.SIGTERM)
    else:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    ended = api.get(f"flow_runs/{run}").json()["state_type"]

    assert process.returncode == 1 and "the same command goes on" in output, output
    assert not marked(slow.environment)
    assert (slow.here.path / "slow.state").read_text() == "saved", "it was told, and waited for"
    assert ended == ("CRASHED" if how == "terminate" else "CANCELLED")
    assert api.states(run) == {"slow": ("CANCELLED", "Cancelled", 1)}
    if how == "cancel":
        slow.run()
        assert (slow.here.path / "next").read_text() == "slow"
