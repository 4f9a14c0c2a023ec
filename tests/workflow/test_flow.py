"""A flow runs what DVC would, as far apart as the graph allows, and tells Prefect all about it."""

import json
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import repositories
from builders import PARAMS
from dvc.repo import Repo
from servers import Server
from survivors import mark, marked, until
from workspace import ROOT, Workspace

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
"""
WORK = """
import pathlib, signal, sys, time
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
if name == "flaky" and (begun / name).read_text() != "xx":
    raise ConnectionError("the network is gone")
if name == "wrong" and pathlib.Path("cure").read_text() != "mended":
    print("error: cure: must be mended", file=sys.stderr)
    sys.exit(65)
if name == "slow":
    def save(*_):
        pathlib.Path("slow.state").write_text("saved")
        sys.exit(1)
    signal.signal(signal.SIGTERM, save)
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
HELD = """
stages:
  held:
    cmd: touch ready; until [ -e go ]; do sleep 0.1; done; echo held > held
    outs: [held]
"""
FINAL = {"COMPLETED", "FAILED", "CANCELLED", "CRASHED"}


class Flows:
    """Runs of the flow in one repository: as seen on the terminal, and at the server."""

    def __init__(self, server: Server, path: Path, graph: str) -> None:
        files = {"params.yaml": PARAMS.read_text(), "work.py": WORK, "cure": "none yet"}
        repositories.repository(path, graph, files)
        repositories.older_runs(path)
        self.server, self.path = server, path
        self.environment = mark() | {
            "PREFECT_API_URL": server.url,
            "PREFECT_API_AUTH_STRING": server.secret,
            "RRCM_SLOTS_DIR": str(path.parent / f"slots of {path.name}"),
            "RRCM_SLOTS": "2",
            "PYTHONPATH": str(ROOT),
        }
        self.known = {run["id"] for run in server.find("flow_runs")}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return Workspace(self.path).start("rrcm", "flow", "run", *arguments, **self.environment)

    def new(self) -> dict[str, Any]:
        """The only run that the server did not have before."""
        (run,) = [run for run in self.server.find("flow_runs") if run["id"] not in self.known]
        return run

    def run(self, *arguments: str) -> tuple[str, dict[str, Any]]:
        """A run to its end: its output, and what the server has of it."""
        output, _ = self.start(*arguments).communicate(timeout=900)
        run = self.new()
        self.known.add(run["id"])
        return output, run

    def of(self, run: dict[str, Any], what: str) -> list[dict[str, Any]]:
        """Rows of a run."""
        return self.server.find(what, flow_runs={"id": {"any_": [run["id"]]}})

    def states(self, run: dict[str, Any]) -> dict[str, tuple[str, str]]:
        """Type and name of each task's state; the server hears of them by and by."""
        until(lambda: {t["state_type"] for t in self.of(run, "task_runs")} <= FINAL, seconds=20)
        return {
            task["name"]: (task["state_type"], task["state_name"])
            for task in self.of(run, "task_runs")
        }

    def begun(self) -> dict[str, int]:
        """How often each stage's command was started."""
        return {file.name: len(file.read_text()) for file in self.path.glob("begun/*")}


@pytest.fixture(scope="module")
def flows(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flows]:
    flows = Flows(server, tmp_path_factory.mktemp("flow") / "a repository", GRAPH)
    yield flows
    assert not marked(flows.environment)


@pytest.fixture(scope="module")
def first(flows: Flows) -> tuple[str, dict[str, Any]]:
    """A run in which a stage is flaky and another one wrong."""
    return flows.run()


def test_what_does_not_need_a_failed_stage_goes_on_and_a_flaky_one_is_tried_again(
    flows: Flows, first: tuple[str, dict[str, Any]]
):
    output, run = first
    last = output.splitlines()[-1]

    assert flows.states(run) == {
        **dict.fromkeys(("root", "left", "right", FLAKY), ("COMPLETED", "Done")),
        "wrong": ("FAILED", "Failed"),
        "after": ("CANCELLED", "Skipped"),
    }
    assert flows.begun() == {"root": 1, "left": 1, "right": 1, "flaky": 2, "wrong": 1}
    assert run["name"] == "all stages"
    assert (run["state_type"], last) == ("FAILED", f"error: {run['state']['message']}")
    assert last.startswith("error: failed: wrong: cure: must be mended (of 6 stages: ")


def test_output_progress_and_the_table_of_stages_are_on_the_page(
    flows: Flows, first: tuple[str, dict[str, Any]]
):
    _, run = first
    tasks = {task["id"]: task["name"] for task in flows.of(run, "task_runs")}
    logs = flows.server.find("logs", logs={"flow_run_id": {"any_": [run["id"]]}}, limit=200)
    said = {(tasks.get(line["task_run_id"]), line["message"]) for line in logs}
    shown = flows.of(run, "artifacts")
    (table,) = [json.loads(one["data"]) for one in shown if one["key"] == "stages"]
    states = {row["stage"]: (row["outcome"], row["tries"]) for row in table}

    assert {("root", "hello from root"), ("wrong", "error: cure: must be mended")} <= said
    assert any("100%" in message for name, message in said if name == "left")
    assert {"progress-flaky-tiny-rrcm-s050-e050", "progress-left"} <= {
        one["key"] for one in shown if one["data"] == 100
    }
    assert states[FLAKY] == ("done", 2)
    assert states["wrong"] == ("failed", 1), "its own error: no second try"


def test_only_what_changed_runs_and_dvc_agrees(flows: Flows, first: tuple[str, dict[str, Any]]):
    (flows.path / "cure").write_text("mended")
    before = flows.begun()

    _, run = flows.run("--force", "right")
    states = flows.states(run)

    assert {name for name, count in flows.begun().items() if count != before.get(name)} == {
        *("right", "wrong", "after")
    }
    assert states["root"] == states["left"] == ("COMPLETED", "Cached")
    with Repo(str(flows.path)) as repo:
        assert repo.status() == {}


@pytest.mark.parametrize("how", ["terminate", pytest.param("cancel", marks=pytest.mark.slow)])
def test_a_stopped_run_leaves_no_process_and_final_states_and_goes_on(
    server: Server, tmp_path: Path, how: str
):
    flows = Flows(server, tmp_path / "slow", SLOW)
    process = flows.start()
    until(lambda: (flows.path / "ready").exists() or process.poll() is not None)
    run = flows.new()

    if how == "cancel":
        state = {"state": {"type": "CANCELLING"}}
        assert server.post(f"flow_runs/{run['id']}/set_state", json=state).is_success
    else:
        process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=300)

    assert process.returncode == 1 and "the same command goes on" in output, output
    assert not marked(flows.environment)
    assert (flows.path / "slow.state").read_text() == "saved", "it was told, and waited for"
    assert flows.new()["state_type"] == ("CRASHED" if how == "terminate" else "CANCELLED")
    assert flows.states(run) == {"slow": ("CANCELLED", "Cancelled")}
    if how == "cancel":
        flows.known.add(run["id"])
        flows.run()
        assert (flows.path / "next").read_text() == "slow"


class Door:
    """A port that leads to a server until it is shut, as by a kill."""

    def __init__(self, url: str) -> None:
        there = httpx.URL(url)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = str(there.copy_with(port=self.listener.getsockname()[1]))
        self.there, self.open = (there.host, there.port), [self.listener]
        threading.Thread(target=self._let_in, daemon=True).start()

    def _let_in(self) -> None:
        with suppress(OSError):
            while True:
                pair = [self.listener.accept()[0], socket.create_connection(self.there)]
                self.open += pair
                for one, other in (pair, pair[::-1]):
                    threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()

    def shut(self) -> None:
        for one in self.open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)


def test_a_run_whose_server_goes_away_ends_as_its_stages_do(server: Server, tmp_path: Path):
    """In a line that says so, and one more: not in Prefect's, for each line of the log."""
    flows, door = Flows(server, tmp_path / "held", HELD), Door(server.url)
    flows.environment["PREFECT_API_URL"] = door.url
    process = flows.start()
    until(lambda: (flows.path / "ready").exists() or process.poll() is not None)
    door.shut()
    (flows.path / "go").touch()
    output, _ = process.communicate(timeout=600)

    assert process.returncode == 0, output
    assert output.splitlines()[-1].startswith(f"1 stage: 1 done; {door.url} did not hear of it")
    assert output.count("no answer of the server") == 1
    assert not any(word in output for word in ("Traceback", "ERROR", "Error logging"))
    assert (flows.path / "held").read_text() == "held\n"
