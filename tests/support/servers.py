"""Servers of Prefect: an empty database, which takes most of a first start, and their answers."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx

from pipeline.workflow.flow import environment


def place(home: Path) -> None:
    """Put one where a server with this PREFECT_HOME looks for it; made once for all tests."""
    shared = Path(tempfile.gettempdir(), f"rrcm-tests-{os.getuid()}-prefect-{version('prefect')}")
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = shared / "prefect.db"
        if not made.exists():
            command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
            with tempfile.TemporaryDirectory() as fresh:
                environment = os.environ | {"PREFECT_HOME": fresh, "DO_NOT_TRACK": "1"}
                subprocess.run(command, check=True, capture_output=True, env=environment)
                shutil.copyfile(Path(fresh, "prefect.db"), shared / "part")
            (shared / "part").rename(made)
    home.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(made, home / "prefect.db")


class Server(httpx.Client):
    """A server, asked by its user; ``client`` are the variables of whoever may use it."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], client: dict[str, str]):
        self.folder, self.process, self.client = folder, process, client
        self.url, self.secret = client[environment.ADDRESS], client[environment.AUTH]
        user, _, password = self.secret.partition(":")
        self.login = (user, password)
        super().__init__(base_url=self.url, auth=self.login, timeout=300)

    def make(self, path: str, **body: object) -> str:
        """The id of what was made."""
        answer = self.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json()["id"]

    def find(self, what: str, **wanted: Any) -> list[dict[str, Any]]:
        """Rows that a filter leaves."""
        answer = self.post(f"{what}/filter", json=wanted)
        assert answer.is_success, answer.text
        return answer.json()
