"""A little graph in clones of one repository that share a remote: hosts, as far as DVC sees."""

import base64
import json
import os
import subprocess
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import databases
import psutil
import workspace
from ruamel.yaml import YAML
from workspace import Workspace

from pipeline.workflow import dvc_lock

T = TypeVar("T")

TOY = textwrap.dedent(
    '''
    """What each stage runs: python toy.py NAME OUTPUT [INPUT...]."""
    import hashlib, os, pathlib, sys, time
    name, output, *inputs = sys.argv[1:]
    made = pathlib.Path(output)
    made.parent.mkdir(parents=True, exist_ok=True)
    log = pathlib.Path(os.environ["TOY"])
    with (log / "began").open("a") as began:
        began.write(f"{name} {pathlib.Path.cwd().name}\\n")
    while (log / f"hold-{name}").exists():
        time.sleep(0.05)
    parts = [pathlib.Path(one).read_text() for one in inputs]
    made.write_text(hashlib.sha256("".join([name, *parts]).encode()).hexdigest())
    '''
)
GRAPH = {  # stage: (output, inputs)
    "big": ("made/big", []),
    "left": ("made/left", ["made/big"]),
    "right": ("made/right", ["made/big"]),
    "last": ("metrics/last", ["made/left", "made/right"]),
}


@dataclass(frozen=True)
class Clones:
    """An origin, its remote for data, and where stages say that they began."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            "TOY": str(self.folder),
            "RRCM_SLOTS_DIR": str(self.folder / "slots"),
            "RRCM_SLOTS": "2",
        }

    def clone(self, name: str) -> Workspace:
        """A host."""
        path = self.folder / name
        git("clone", "--quiet", str(self.folder / "origin"), str(path))
        git("-C", str(path), "config", "user.email", "test@example.org")
        git("-C", str(path), "config", "user.name", "test")
        databases.place(path / ".rrcm/prefect")
        return Workspace(path)

    def began(self) -> list[tuple[str, str]]:
        """(stage, clone) of every command that was started, in order."""
        file = self.folder / "began"
        return (
            [tuple(line.split()) for line in file.read_text().splitlines()] if file.exists() else []
        )

    def hold(self, stage: str) -> Path:
        """Have a stage wait until the file is gone."""
        (self.folder / f"hold-{stage}").touch()
        return self.folder / f"hold-{stage}"


def make(folder: Path) -> Clones:
    """An origin with this working tree's code, the little graph, and an empty remote."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "remote").mkdir()
    first = workspace.create(folder / "first")
    stages = {
        name: {
            "cmd": " ".join(["python toy.py", name, output, *inputs]),
            "deps": ["toy.py", *inputs],
            "outs": [output],
        }
        for name, (output, inputs) in GRAPH.items()
    }
    stages["last"] |= {"outs": [], "metrics": [{"metrics": {"cache": False}}]}
    (first.path / "toy.py").write_text(TOY)
    (first.path / ".gitignore").write_text((first.path / ".gitignore").read_text() + "/made/\n")
    for pointer in first.path.glob("**/*.dvc"):
        if pointer.is_file():
            pointer.unlink()
    YAML().dump({"stages": stages}, first.path / "dvc.yaml")
    first.run("dvc", "remote", "add", "--default", "shared", str(folder / "remote"))
    first.commit("a little graph")
    git("clone", "--quiet", "--bare", str(first.path), str(folder / "origin"))
    return Clones(folder)


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def lock(of: Workspace) -> dict:
    """The stages of a checkout's dvc.lock."""
    before = os.getcwd()
    os.chdir(of.path)
    try:
        return dvc_lock.read()["stages"]
    finally:
        os.chdir(before)


def alive(clones: Clones) -> list[str]:
    """Commands of processes that were started with these clones' environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TOY") == str(clones.folder):
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return [command for command in found if command]  # none of a zombie


def until(what: Callable[[], T], *, seconds: float = 600) -> T:
    """What ``what`` says once it says anything."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


class Service:
    """`rrcm flow up` of a checkout."""

    def __init__(self, clones: Clones, checkout: Workspace, *options: str, **more: str) -> None:
        self.checkout, self.log = checkout, checkout.path.with_suffix(".up.log")
        self.environment = clones.environment | {"PREFECT_API_URL": ""} | more
        command = ("rrcm", "flow", "up", "--port", "0", *options)
        self.process = background(checkout, self.log, *command, **self.environment)
        until(self._ready)

    def _ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return "shows runs" in self.log.read_text()

    @property
    def url(self) -> str:
        return self.client["PREFECT_API_URL"]

    @property
    def secret(self) -> str:
        return self.client["PREFECT_API_AUTH_STRING"]

    @property
    def client(self) -> dict[str, str]:
        """What clients of the server set."""
        return json.loads((self.checkout.path / ".rrcm/prefect/server.json").read_text())

    def ask(self, path: str, body: object | None = None) -> Any:
        """The API's answer."""
        data = None if body is None else json.dumps(body).encode()
        token = base64.b64encode(self.secret.encode()).decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {token}"}
        request = urllib.request.Request(f"{self.url}/{path}", data, headers)
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return json.loads(answer.read() or "null")
            except urllib.error.HTTPError as error:  # 503: its database is busy; clients ask again
                if error.code != 503 or time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def start(self, deployment: str, **parameters: object) -> str:
        """Start a run; its id."""
        found = self.ask(f"deployments/name/{deployment}")["id"]
        return self.ask(f"deployments/{found}/create_flow_run", {"parameters": parameters})["id"]


def background(
    checkout: Workspace, log: Path, *command: str, **environment: str
) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own; a file gets what it says."""
    with log.open("wb") as file:
        return subprocess.Popen(
            command,
            cwd=checkout.path,
            env=checkout.environment(**environment),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def processes(pid: int) -> list[psutil.Process]:
    """All that a process started, and what that did."""
    return psutil.Process(pid).children(recursive=True)
