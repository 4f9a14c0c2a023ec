"""What must be in the environment before Prefect is imported, and which checkout a flow is of."""

import json
import os
from pathlib import Path

from rrcm.core.errors import StageError, one_line

HOME = Path(".rrcm/prefect")  # Prefect's database and files, of this checkout alone
SERVER = HOME / "server.json"  # the server of `rrcm flow up`, while it runs
SECRET = HOME / "secret"  # what it asks for
CHECKOUT = "RRCM_CHECKOUT"  # where a worker's flows go, which start in a folder of their own
ADDRESS = "PREFECT_API_URL"
AUTH = "PREFECT_API_AUTH_STRING"  # the secret of the server that is meant
REPORT = Path("report")
POOL, FLOWS, STAGES = "rrcm", "flows", "stages"  # the work pool and its queues, as in prefect.yaml
LINES = "%(asctime)s  "

QUIET = {  # nothing is told to anybody, and no page asks for more
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "DVC_NO_ANALYTICS": "1",
}
USUAL = {  # what may be set otherwise
    "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",  # no server that nobody asked for
    "PREFECT_LOGGING_FORMATTERS_STANDARD_FLOW_RUN_FMT": f"{LINES}%(message)s",
    "PREFECT_LOGGING_FORMATTERS_STANDARD_TASK_RUN_FMT": f"{LINES}%(task_run_name)s: %(message)s",
}


def prepare() -> str:
    """Set what Prefect reads when it is imported; the address of the server that is meant.

    That is the one of PREFECT_API_URL, else that of `rrcm flow up` in this checkout, and an empty
    string where there is neither. Without PREFECT_API_URL, PREFECT_HOME is of this checkout.
    The secret of `rrcm flow up` is then that of its file. No telemetry is sent. May be called
    again.

    Raises:
        StageError: What `rrcm flow up` wrote cannot be read.
    """
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
    """The address of `rrcm flow up` of this checkout, or an empty string where it does not run.

    Raises:
        StageError: What it wrote cannot be read.
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
    """Go to the checkout that RRCM_CHECKOUT names, if it is set; flows begin with this.

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
    except PermissionError:  # of another user
        return True
    return True
