"""Stages on several hosts, which here are clones of one repository that share a remote."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import clones
import httpx
import psutil
import pytest
from clones import Clones, Service, alive, lock, until
from prefect.client.schemas import State
from prefect.states import Running, Scheduled
from workspace import Workspace

from pipeline.workflow import stage_run
from pipeline.workflow.flow import hosts as workers

FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


class Hosts:
    """A coordinator, and workers for its stages, each with one slot of its own."""

    def __init__(self, folder: Path) -> None:
        self.team = clones.make(folder / "team")
        self.coordinator = self.team.clone("coordinator")
        self.service = Service(self.team, self.coordinator, RRCM_SILENCE_SECONDS="12")
        self.workers: list[subprocess.Popen[bytes]] = []

    def worker(self, checkout: Workspace) -> subprocess.Popen[bytes]:
        number = len(self.workers)
        environment = self.team.environment | {
            **self.service.client,
            "RRCM_SLOTS": "1",
            "RRCM_SLOTS_DIR": str(self.team.folder / f"slots-{number}"),
            "RRCM_SILENCE_SECONDS": "12",
        }
        log = self.team.folder / f"worker-{number}.log"
        command = ("rrcm", "flow", "worker")
        self.workers.append(clones.background(checkout, log, *command, **environment))
        return self.workers[-1]

    def ended(self, run: str) -> dict[str, Any]:
        """A run, when it is over."""
        found = {}

        def over() -> bool:
            found.update(self.service.ask(f"flow_runs/{run}"))
            return found["state_type"] in FINAL

        until(over, seconds=180)
        return found

    def close(self) -> None:
        for process in [*self.workers, self.service.process]:
            process.terminate()
            process.wait(90)
        assert not alive(self.team)


@contextmanager
def hosts(folder: Path) -> Iterator[Hosts]:
    made = Hosts(folder)
    try:
        yield made
    finally:
        made.close()


def alone(team: Clones) -> str:
    """dvc.lock after `dvc repro` in one clone."""
    one = team.clone("alone")
    one.run("dvc", "repro", **team.environment)
    (team.folder / "began").unlink()
    return (one.path / "dvc.lock").read_text()


@pytest.mark.slow
def test_two_workers_run_each_stage_once_and_dvc_lock_is_that_of_repro(tmp_path: Path):
    with hosts(tmp_path) as all_:
        team, coordinator = all_.team, all_.coordinator
        wanted = alone(team)
        for name in ("a", "b"):
            all_.worker(team.clone(name))
        holds = [team.hold("left"), team.hold("right")]
        run = all_.service.start("rebuild/on-demand", hosts=True)
        until(lambda: len(team.began()) == 3)  # both wait at once, so on both workers
        (prefect, *_) = psutil.Process(all_.workers[0].pid).children(recursive=True)
        assert prefect.environ()["PREFECT_WORKER_PREFETCH_SECONDS"] == "86400"  # a clock behind
        for hold in holds:
            hold.unlink()
        ended = all_.ended(run)

        assert ended["state_type"] == "COMPLETED", ended
        assert sorted(stage for stage, _ in team.began()) == ["big", "last", "left", "right"]
        assert {clone for stage, clone in team.began() if stage in ("left", "right")} == {"a", "b"}
        assert (coordinator.path / "dvc.lock").read_text() == wanted
        assert not (coordinator.path / "made").exists()
        metric = (team.folder / "alone/metrics/last").read_text()
        assert (coordinator.path / "metrics/last").read_text() == metric
        coordinator.run("dvc", "pull", "left", "right", "big")
        assert "up to date" in coordinator.run("dvc", "status")


@pytest.mark.slow
def test_a_stage_goes_on_elsewhere_when_its_host_dies_and_ends_when_its_run_is_cancelled(
    tmp_path: Path,
):
    with hosts(tmp_path) as all_:
        team = all_.team
        one, other = team.clone("one"), team.clone("other")
        worker, hold = all_.worker(one), team.hold("left")
        run = all_.service.start("rebuild/on-demand", targets=["left"], hosts=True)
        until(lambda: team.began() == [("big", "one"), ("left", "one")])
        worker.kill()
        worker.wait()
        until(lambda: not [one for one in alive(team) if "toy.py" in one], seconds=60)
        hold.unlink()
        all_.worker(other)
        ended = all_.ended(run)

        assert ended["state_type"] == "COMPLETED", ended
        assert team.began() == [("big", "one"), ("left", "one"), ("left", "other")]
        assert {*lock(all_.coordinator)} == {"big", "left"}

        hold = team.hold("right")
        run = all_.service.start("rebuild/on-demand", targets=["right"], hosts=True)
        until(lambda: team.began()[-1] == ("right", "other"))
        cancelling = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
        all_.service.ask(f"flow_runs/{run}/set_state", cancelling)
        assert all_.ended(run)["state_type"] == "CANCELLED"
        assert not [one for one in alive(team) if "toy.py" in one]
        (child,) = [
            one
            for one in all_.service.ask("flow_runs/filter", {})
            if one["name"] == "right" and one["parent_task_run_id"]
        ]
        assert child["state_type"] == "CANCELLED"
        hold.unlink()


class Server:
    """A server that answers what it is told, a second later at each question."""

    def __init__(self, *states: State | Exception, monkeypatch: pytest.MonkeyPatch) -> None:
        self.states, self.set, self.seconds = list(states), [], 0.0
        monkeypatch.setattr(workers.time, "monotonic", lambda: self.seconds)
        monkeypatch.setattr(workers.time, "sleep", lambda seconds: None)

    def read_flow_run(self, run: object) -> SimpleNamespace:
        self.seconds += workers.BEAT
        state = self.states[0] if len(self.states) == 1 else self.states.pop(0)
        if isinstance(state, Exception):
            raise state
        return SimpleNamespace(state=state)

    def read_artifacts(self, artifact_filter: object) -> list[object]:
        return []

    def set_flow_run_state(self, run: object, state: State, force: bool = False) -> None:
        self.set.append((state.name, self.seconds))
        if force:
            self.states = [state]


class Now(Event):
    """A stop that is not waited for."""

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


def test_a_run_is_given_up_that_stopped_reporting_or_does_not_end(monkeypatch: pytest.MonkeyPatch):
    """And one that no worker takes stays awaited; after a minute, that is said."""
    said, stop, uuid = [], Now(), UUID(int=0)

    def over(server: Server) -> State:
        return workers._over("a", uuid, server, stop=stop, say=said.append)[0]

    lonely = [Scheduled()] * 99
    server = Server(*lonely, Running(), monkeypatch=monkeypatch)
    assert over(server).is_crashed()
    ((name, seconds),) = server.set
    silent = seconds - len(lonely) * workers.BEAT
    assert name == "Crashed" and workers.SILENCE < silent <= 1.2 * workers.SILENCE
    assert said == ["waiting for a worker; `rrcm flow worker`, in a clone, starts one"]

    with pytest.raises(stage_run.Failed, match="no answer of the server") as caught:
        over(Server(Running(), httpx.ConnectError("away"), monkeypatch=monkeypatch))
    assert caught.value.retryable

    stop.set()
    server = Server(Running(), monkeypatch=monkeypatch)
    assert over(server).is_cancelled()
    assert [name for name, _ in server.set] == ["Cancelling", "Cancelled"]
    assert server.set[1][1] > workers.FAREWELL
