"""A little graph in clones of one repository that share a remote: hosts, as far as DVC sees."""

import json
import subprocess
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import repositories
import servers
import workspace
from ruamel.yaml import YAML
from survivors import MARK, marked, until
from workspace import Workspace

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
            MARK: str(self.folder),
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
        servers.place(path / ".rrcm/prefect")
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
    repositories.older_runs(first.path)
    first.run("dvc", "remote", "add", "--default", "shared", str(folder / "remote"))
    first.commit("a little graph")
    git("clone", "--quiet", "--bare", str(first.path), str(folder / "origin"))
    return Clones(folder)


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def alive(clones: Clones) -> list[psutil.Process]:
    """Processes that were started with these clones' environment."""
    return marked(clones.environment)


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
        user, _, password = self.secret.partition(":")
        method = "GET" if body is None else "POST"
        with httpx.Client(auth=(user, password), timeout=60) as client:
            for _ in range(100):  # 503: its database is busy; clients ask again
                answer = client.request(method, f"{self.url}/{path}", json=body)
                if answer.status_code != 503:
                    break
                time.sleep(0.5)
        return answer.raise_for_status().json() if answer.content else None

    def start(self, deployment: str, **parameters: object) -> str:
        """Start a run; its id."""
        found = self.ask(f"deployments/name/{deployment}")["id"]
        return self.ask(f"deployments/{found}/create_flow_run", {"parameters": parameters})["id"]


def background(
    checkout: Workspace, log: Path, *command: str, **environment: str
) -> subprocess.Popen[str]:
    """Start a command in a process group of its own; a file gets what it says."""
    with log.open("wb") as file:
        return checkout.start(*command, output=file, **environment)


def processes(pid: int) -> list[psutil.Process]:
    """All that a process started, and what that did."""
    return psutil.Process(pid).children(recursive=True)
