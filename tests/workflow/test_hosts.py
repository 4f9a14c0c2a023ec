"""Stages on several hosts, which here are clones of one repository that share a remote."""

import subprocess
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from uuid import UUID

import clones
import httpx
import pytest
from clones import Clones, Service, alive, until
from prefect.client.schemas import State
from prefect.states import Pending, Running, Scheduled

from pipeline.workflow import stage_run
from pipeline.workflow.flow import hosts as workers

FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
SILENCE = {"RRCM_SILENCE_SECONDS": "12"}


def worker(team: Clones, service: Service, name: str) -> subprocess.Popen[str]:
    """A host with one slot of its own."""
    own = {"RRCM_SLOTS": "1", "RRCM_SLOTS_DIR": str(team.folder / f"slots-{name}")}
    environment = team.environment | service.client | own | SILENCE
    log = team.folder / f"{name}.log"
    return clones.background(team.clone(name), log, "rrcm", "flow", "worker", **environment)


@pytest.mark.slow
def test_two_workers_run_each_stage_once_and_a_lost_ones_stage_goes_on_elsewhere(tmp_path: Path):
    team = clones.make(tmp_path / "team")
    coordinator, alone = team.clone("coordinator"), team.clone("alone")
    alone.run("dvc", "repro", **team.environment)
    (team.folder / "began").unlink()
    service = Service(team, coordinator, **SILENCE)
    workers = {name: worker(team, service, name) for name in ("a", "b")}
    try:
        holds = [team.hold("left"), team.hold("right")]
        run = service.start("rebuild/on-demand", hosts=True)
        until(lambda: len(team.began()) == 3)  # both wait at once, so on both workers
        lost = workers[dict(team.began())["left"]]
        started = clones.processes(lost.pid)
        lost.kill()
        lost.wait()
        until(lambda: not any(one in started for one in alive(team)), seconds=60)
        for hold in holds:
            hold.unlink()
        until(lambda: service.ask(f"flow_runs/{run}")["state_type"] in FINAL, seconds=180)

        assert service.ask(f"flow_runs/{run}")["state_type"] == "COMPLETED"
        began = sorted(stage for stage, _ in team.began())
        assert began == ["big", "last", "left", "left", "right"]
        assert len({clone for stage, clone in team.began() if stage == "left"}) == 2
        for file in ("dvc.lock", "metrics/last"):
            assert (coordinator.path / file).read_text() == (alone.path / file).read_text()
        assert not (coordinator.path / "made").exists()
        coordinator.run("dvc", "pull", "left", "right", "big")
        assert "up to date" in coordinator.run("dvc", "status")
    finally:
        for process in (*workers.values(), service.process):
            process.terminate()
            process.wait(90)
    assert not alive(team)


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

    with monkeypatch.context() as patch:  # taken by a worker that never starts it
        patch.setattr(workers, "SILENCE", 25.0)
        server = Server(Pending(), monkeypatch=monkeypatch)
        assert over(server).is_crashed()
        assert 75 < server.set[0][1] <= 90

    with pytest.raises(stage_run.Failed, match="no answer of the server") as caught:
        over(Server(Running(), httpx.ConnectError("away"), monkeypatch=monkeypatch))
    assert caught.value.retryable

    stop.set()
    server = Server(Running(), monkeypatch=monkeypatch)
    assert over(server).is_cancelled()
    assert [name for name, _ in server.set] == ["Cancelling", "Cancelled"]
    assert server.set[1][1] > workers.FAREWELL
