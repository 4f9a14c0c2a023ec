"""Faults of hosts, server and remote: ``python -m benchmarks.drills.hosts [--only NAME]``.

A coordinator and two hosts, which are clones of one repository on this machine, share a remote.
They train a network, draw its votes in two pieces and certify it, while something goes wrong. Each
drill prints what was lost, how long it took to go on, and whether the results have the bytes of an
uninterrupted `dvc repro`. The rows are those of docs/flows.md.

A worker counts as lost after SILENCE seconds, and state is sent to the remote every PERIOD seconds:
less than usual, so that the drills are short.
"""

import argparse
import json
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))

import clones
import psutil
import workspace
from clones import Clones, Service
from survivors import until
from workspace import Workspace

from pipeline.runtime.graph import SCRATCH
from pipeline.workflow.splitting import JOURNAL
from rrcm.core.files import sha256
from rrcm.models.trained.base import checkpoint

SILENCE, PERIOD = 20.0, 5.0
TRIAL, DRAWS = 20, 20_000  # of a trial: epochs, and draws of each of 20 images
BUSY = 60.0  # seconds that a training takes, and a sampling, by their rates
RUN = "tiny-gaussian-s050"
EVAL = f"{RUN}-e050"
TRAIN, SAMPLE, CERTIFY = f"train@{RUN}", f"sample@{EVAL}", f"certify@{EVAL}"
RESULTS = (f"models/{RUN}/model.safetensors", f"votes/{EVAL}.jsonl", f"certificates/{EVAL}.csv")
SECRET = "drill:a-secret-of-the-drills"
ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a drill found: what was lost, and the seconds until work went on."""

    lost: str
    seconds: float


class Team:
    """Clones of a repository with one network to train and to certify, their server and workers."""

    def __init__(self, folder: Path, *, epochs: int, n: int) -> None:
        """Make the repository and the remote, and no clone yet."""
        self.folder = folder
        (folder / "store").mkdir(parents=True)
        self.mount("store")
        first = workspace.create(folder / "first")
        first.edit(partial(_cut, epochs=epochs, n=n))
        for pointer in first.path.glob("**/*.dvc"):
            if pointer.is_file():
                pointer.unlink()
        first.run("rrcm", "data", "digits")
        first.run("dvc", "remote", "add", "--default", "shared", str(folder / "remote"))
        first.run("dvc", "push")
        first.commit("one network")
        clones.git("clone", "--quiet", "--bare", str(first.path), str(folder / "origin"))
        self.clones = Clones(folder)
        self.workers: list[psutil.Process] = []

    @classmethod
    def busy(cls, folder: Path) -> "Team":
        """A team whose training and sampling take about `BUSY` seconds each on this machine."""
        team = cls(folder, epochs=TRIAL, n=DRAWS)
        trial = team.clone("trial")
        took: dict[str, list[float]] = {TRAIN: [], SAMPLE: []}
        for factor in (1, 3):  # the difference is without what every start takes
            trial.edit(partial(_cut, epochs=factor * TRIAL, n=factor * DRAWS))
            trial.run("dvc", "repro", SAMPLE)
            for stage, seconds in took.items():
                record = json.loads((trial.path / f"provenance/{stage}.json").read_text())
                seconds.append(record["seconds"])
        busy = {stage: 2 * BUSY / max(b - a, 0.1) for stage, (a, b) in took.items()}
        first = Workspace(folder / "first")
        first.edit(partial(_cut, epochs=round(busy[TRAIN] * TRIAL), n=round(busy[SAMPLE] * DRAWS)))
        first.commit("a training of a minute, and a sampling")
        first.run("git", "push", "--quiet", str(folder / "origin"), "HEAD")
        return team

    def clone(self, name: str) -> Workspace:
        """A host with the data."""
        made = self.clones.clone(name)
        made.run("dvc", "pull", "data")
        return made

    def again(self) -> "Team":
        """Remove all hosts, and what they sent."""
        self.close()
        for path in self.folder.iterdir():
            if path.name not in ("origin", "first", "remote", "store"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(self.folder / "store")
        (self.folder / "store").mkdir()
        self.mount("store")
        Workspace(self.folder / "first").run("dvc", "push", "data")
        self.workers = []
        return self

    def mount(self, name: str) -> None:
        """Let the remote be what ``name`` is: in one step, as hosts write to it all the time."""
        link = self.folder / "link"
        link.symlink_to(name)
        link.replace(self.folder / "remote")

    def serve(self, *, port: int = 0) -> None:
        """Start the coordinator and its server."""
        if not (self.folder / "coordinator").exists():
            self.clones.clone("coordinator")
        self.coordinator = Workspace(self.folder / "coordinator")
        if not port:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
        self.port = port
        self.service = Service(
            self.clones,
            self.coordinator,
            "--port",
            str(port),
            RRCM_SILENCE_SECONDS=str(SILENCE),
            PREFECT_SERVER_API_AUTH_STRING=SECRET,
        )

    def work(self, name: str, **more: str) -> psutil.Process:
        """Start a worker in the clone of this name, with slots of its own."""
        path = self.folder / name
        checkout = Workspace(path) if path.exists() else self.clone(name)
        environment = self.clones.environment | {
            **self.service.client,
            "RRCM_SLOTS": "1",
            "RRCM_SLOTS_DIR": str(self.folder / f"slots-{name}"),
            "RRCM_SILENCE_SECONDS": str(SILENCE),
            "RRCM_MOVE_SECONDS": str(PERIOD),
            "RRCM_SAVE_SECONDS": "1",
            **more,
        }
        command = ("rrcm", "flow", "worker")
        started = clones.background(checkout, self.log(name), *command, **environment)
        self.workers.append(psutil.Process(started.pid))
        return self.workers[-1]

    def log(self, name: str) -> Path:
        """What a worker says."""
        return self.folder / f"{name}.log"

    def tails(self) -> str:
        """The last lines of each log."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in logs)

    def start(self) -> str:
        """Ask for everything, with samplings in two pieces."""
        asked = {"targets": [CERTIFY], "hosts": True, "shares": 2, "retries": 4}
        return self.service.start("rebuild/on-demand", **asked)

    def state(self, run: str) -> dict[str, Any]:
        """A run, as the server sees it."""
        return self.service.ask(f"flow_runs/{run}")

    def over(self, run: str, *, seconds: float = 600) -> dict[str, Any]:
        """A run that has ended."""
        return until(
            lambda: found if (found := self.state(run))["state_type"] in ENDED else None,
            seconds=seconds,
        )

    def results(self) -> dict[str, str]:
        """SHA-256 of the results, from the remote."""
        self.coordinator.run("dvc", "pull", *RESULTS)
        return {name: sha256(self.coordinator.path / name) for name in RESULTS}

    def at_work(self, stage: str) -> str | None:
        """The clone that runs a stage, once its state is at the remote."""
        sent = [*(self.folder / "remote").glob(f"rrcm-resume/{stage.partition(':')[0]}/*/*.zip")]
        for path in self.folder.glob(f"host-*/{SCRATCH}/{stage}.lock") if sent else ():
            return path.relative_to(self.folder).parts[0]
        return None

    def close(self) -> None:
        """End all processes."""
        for process in self.workers:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        psutil.wait_procs(self.workers, timeout=90)
        if hasattr(self, "service"):
            self.service.process.terminate()
            self.service.process.wait(90)
            until(lambda: not clones.alive(self.clones), seconds=60)


def _cut(params: dict[str, Any], *, epochs: int, n: int) -> None:
    """Leave one network, with so much to train and to draw."""
    params["runs"] = {RUN: params["runs"][RUN]}
    params["evals"] = {EVAL: params["evals"][EVAL]}
    params["pretrain"] = {}
    params["recipes"]["scratch"]["epochs"] = epochs
    params["sample"] |= {"n": n, "n0": 100, "stop": "none", "batch_size": 64}


def killed(process: psutil.Process) -> None:
    """SIGKILL to a process and to all that it started, as when a host is gone."""
    for one in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            one.kill()


def step(folder: Path) -> int:
    """Steps of the training whose state is there."""
    (state,) = folder.glob(f"{SCRATCH}/{TRAIN}/*/state.safetensors")
    return int(json.loads(checkpoint.load(state)[1]["state"])["step"])


def two_hosts(team: Team) -> dict[str, psutil.Process]:
    """Server, coordinator and two workers."""
    team.serve()
    return {name: team.work(name) for name in ("host-a", "host-b")}


def in_training(team: Team) -> Found:
    """a host is gone while it trains"""
    workers = two_hosts(team)
    run = team.start()
    name = until(lambda: team.at_work(TRAIN))
    time.sleep(PERIOD)
    killed(workers.pop(name))
    began, reached = time.monotonic(), step(team.folder / name)
    ((other, _),) = workers.items()
    found = until(lambda: re.search(r"resuming at step (\d+) of", team.log(other).read_text()))
    seconds = time.monotonic() - began
    team.over(run)
    return Found(lost=f"{reached - int(found[1])} of {reached} steps", seconds=seconds)


def in_a_piece(team: Team) -> Found:
    """a host is gone while it draws a piece"""
    workers = two_hosts(team)
    run = team.start()
    piece = f"{SAMPLE}:1of2"
    name = until(lambda: team.at_work(piece))
    until(lambda: images(team.folder / name, piece) >= 3)
    killed(workers.pop(name))
    began, drawn = time.monotonic(), images(team.folder / name, piece)
    ((other, _),) = workers.items()
    until(lambda: (team.folder / other / SCRATCH / f"{piece}.lock").exists())
    seconds = time.monotonic() - began
    kept = images(team.folder / other, piece)
    team.over(run)
    return Found(lost=f"{max(0, drawn - kept)} of {drawn} images", seconds=seconds)


def images(folder: Path, piece: str) -> int:
    """Images of which a host has drawn all votes of a piece."""
    journals = (folder / SCRATCH / piece).glob(f"*/{JOURNAL}")
    return sum(path.read_text().count('"stop":"n"') for path in journals)


def server(team: Team) -> Found:
    """the server is killed, and back after 10 s"""
    two_hosts(team)
    run = team.start()
    name = until(lambda: team.at_work(TRAIN))
    reached = step(team.folder / name)
    killed(psutil.Process(team.service.process.pid))
    team.service.process.wait()
    began = time.monotonic()
    time.sleep(10)
    team.serve(port=team.port)
    again = team.start()
    until(lambda: step_of_any(team) > reached)
    seconds = time.monotonic() - began
    team.over(again)
    crashed = team.state(run)["state_type"]
    return Found(lost=f"the run, which is {crashed.capitalize()}; no step", seconds=seconds)


def step_of_any(team: Team) -> int:
    """Steps of the training that is furthest, or all if it is over."""
    if [*(team.folder / "remote").glob("runs/*")]:
        return sys.maxsize
    with suppress(ValueError, OSError):
        return max(step(path) for path in team.folder.glob("host-*"))
    return 0


def remote(team: Team) -> Found:
    """the remote is away for a minute, at the end of the training"""
    two_hosts(team)
    run = team.start()
    until(lambda: team.at_work(TRAIN))
    (team.folder / "gone").touch()
    team.mount("gone")
    time.sleep(60)
    team.mount("store")
    back = time.monotonic()
    until(lambda: [*(team.folder / "remote").glob("runs/*")], seconds=300)
    seconds = time.monotonic() - back
    team.over(run)
    return Found(lost="nothing", seconds=seconds)


DRILLS: dict[str, Callable[[Team], Found]] = {
    one.__name__: one for one in (in_training, in_a_piece, server, remote)
}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", action="append", choices=[*DRILLS])
    names = options.parse_args().only or [*DRILLS]
    good = True
    with tempfile.TemporaryDirectory(prefix="rrcm-drills-") as folder:
        team = Team.busy(Path(folder))
        alone = team.clone("alone")
        alone.run("dvc", "repro", CERTIFY)
        wanted = {name: sha256(alone.path / name) for name in RESULTS}
        print(
            "| fault | lost | goes on after | same bytes |\n| --- | --- | ---: | --- |", flush=True
        )
        for name in names:
            try:
                found = DRILLS[name](team.again())
                same = team.results() == wanted
            except AssertionError as error:  # something did not happen in time
                print(f"{name}: {error}\n{team.tails()}", file=sys.stderr, flush=True)
                found, same = Found(lost="**did not end**", seconds=float("nan")), False
            good &= same
            print(
                f"| {DRILLS[name].__doc__} | {found.lost} | {found.seconds:.0f} s | "
                f"{'yes' if same else '**no**'} |",
                flush=True,
            )
        team.close()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
