"""Databases of Prefect's server, empty: making one takes most of a server's first start."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path


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
