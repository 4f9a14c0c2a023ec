"""Sets the environment that Prefect reads at import, and finds the checkout of a flow."""

import json
import os
from pathlib import Path

from rrcm.core.errors import StageError, one_line
from rrcm.inference import extras

HOME = Path(".rrcm/prefect")  # Prefect's database and files, of this checkout alone
SERVER = HOME / "server.json"  # the server of `rrcm flow up`, while it runs
SECRET = HOME / "secret"  # the secret of that server
CHECKOUT = "RRCM_CHECKOUT"  # the checkout of a worker's flows, which start in another folder
ADDRESS = "PREFECT_API_URL"
AUTH = "PREFECT_API_AUTH_STRING"  # the secret of the server at ADDRESS
POOL, FLOWS, STAGES = "rrcm", "flows", "stages"  # the work pool and its queues, as in prefect.yaml
LINES = "%(asctime)s  "

QUIET = {  # no telemetry, and no prompts on Prefect's pages
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "DVC_NO_ANALYTICS": "1",
}
USUAL = {  # defaults that the environment may override
    "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",  # Prefect must not start a server by itself
    # Between two requests of a worker for runs: with many workers, the server's main load.
    "PREFECT_WORKER_QUERY_SECONDS": "5",
    "PREFECT_LOGGING_FORMATTERS_STANDARD_FLOW_RUN_FMT": f"{LINES}%(message)s",
    "PREFECT_LOGGING_FORMATTERS_STANDARD_TASK_RUN_FMT": f"{LINES}%(task_run_name)s: %(message)s",
}


def prepare() -> str:
    """Set the variables that Prefect reads at import; return the address of the server to use.

    The address is PREFECT_API_URL, else that of `rrcm flow up` in this checkout, else an empty
    string. Without PREFECT_API_URL, PREFECT_HOME lies in this checkout, and the secret of
    `rrcm flow up` is read from its file. No telemetry is sent. May be called again.

    Raises:
        ModuleNotFoundError: Prefect is not installed.
        StageError: A file that `rrcm flow up` wrote cannot be read.
    """
    extras.require("prefect")
    os.environ.update(QUIET)
    for name, value in USUAL.items():
        os.environ.setdefault(name, value)
    if address := os.environ.get(ADDRESS):
        return address
    os.environ["PREFECT_HOME"] = str(HOME.absolute())
    if address := running():
        os.environ |= {ADDRESS: address, AUTH: _secret()}
    return address


def running() -> str:
    """The address of `rrcm flow up` of this checkout, or an empty string if it does not run.

    Raises:
        StageError: The file that it wrote cannot be read.
    """
    try:
        said = json.loads(SERVER.read_text())
        address, process = str(said["url"]), int(said["pid"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StageError(
            f"{SERVER}: is not what `rrcm flow up` writes ({one_line(error)}); remove it"
        ) from None
    return address if _alive(process) else ""


def enter() -> None:
    """Change to the checkout that RRCM_CHECKOUT names, if it is set; every flow starts with this.

    Raises:
        StageError: It is no checkout.
    """
    folder = Path(os.environ.get(CHECKOUT, "."))
    if not (folder / "dvc.yaml").is_file():
        raise StageError(f"{folder.absolute()}: is no checkout (no dvc.yaml); see {CHECKOUT}")
    os.environ[CHECKOUT] = str(folder.absolute())
    os.chdir(folder)


def _secret() -> str:
    try:
        return SECRET.read_text().strip()
    except OSError as error:
        raise StageError(f"{SECRET}: {error.strerror}; start `rrcm flow up` again") from None


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # the process belongs to another user
        return True
    return True
