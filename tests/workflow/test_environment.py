"""What a flow is told before it begins, and by whom; nobody else pays for Prefect."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from builders import refused
from survivors import until

from pipeline.workflow import processes
from pipeline.workflow.flow import environment
from rrcm.core.errors import StageError


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """An environment of the test's own, in an empty folder."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "RRCM"))}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", own)
    return own


def serve(**said: object) -> None:
    environment.SERVER.parent.mkdir(parents=True, exist_ok=True)
    environment.SERVER.write_text(json.dumps(said))
    environment.SECRET.write_text("rrcm:its secret\n")


def test_the_command_line_imports_neither_prefect_nor_dvc():
    code = "import cli, sys; print(*{'prefect', 'dvc', 'torch'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []


def test_without_a_server_everything_is_of_this_checkout_and_tells_nobody(
    variables: dict[str, str], tmp_path: Path
):
    assert environment.prepare() == environment.prepare() == ""
    assert variables["PREFECT_HOME"] == str(tmp_path / ".rrcm/prefect")
    assert variables["DO_NOT_TRACK"] == "1"
    assert variables["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert "PREFECT_API_URL" not in variables


def test_a_server_that_is_named_is_meant_and_nothing_is_of_this_checkout(variables: dict[str, str]):
    variables["PREFECT_API_URL"] = "http://example.org/api"
    serve(url="http://127.0.0.1:4200/api", pid=os.getpid())

    assert environment.prepare() == "http://example.org/api"
    assert "PREFECT_API_AUTH_STRING" not in variables, "ours is not for others"
    assert "PREFECT_HOME" not in variables
    assert variables["DO_NOT_TRACK"] == "1"


def test_a_server_of_this_checkout_is_meant_as_long_as_it_lives(variables: dict[str, str]):
    gone = subprocess.Popen(["true"])
    gone.wait()
    serve(url="http://127.0.0.1:4200/api", pid=gone.pid)
    assert environment.prepare() == ""

    serve(url="http://127.0.0.1:4200/api", pid=os.getpid())
    assert environment.prepare() == variables["PREFECT_API_URL"] == "http://127.0.0.1:4200/api"
    assert variables["PREFECT_API_AUTH_STRING"] == "rrcm:its secret"


def test_a_secret_that_is_gone_is_said_in_one_line(variables: dict[str, str]):
    serve(url="http://127.0.0.1:4200/api", pid=os.getpid())
    environment.SECRET.unlink()

    with refused(StageError, ".rrcm/prefect/secret: No such file", "start `rrcm flow up` again"):
        environment.prepare()


def test_a_note_of_a_server_that_is_none_is_refused(variables: dict[str, str]):
    serve(address="elsewhere")

    with refused(StageError, "server.json", "remove it"):
        environment.prepare()


def test_a_flow_goes_to_its_checkout_or_says_that_it_has_none(
    variables: dict[str, str], tmp_path: Path
):
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone/dvc.yaml").touch()
    variables["RRCM_CHECKOUT"] = "clone"
    environment.enter()
    environment.enter()
    assert Path.cwd() == tmp_path / "clone"

    variables["RRCM_CHECKOUT"] = str(tmp_path)
    with refused(StageError, "is no checkout", "RRCM_CHECKOUT"):
        environment.enter()


def test_a_signal_asks_to_stop_and_does_nothing_else():
    stop, said = processes.Stop(), []
    before = signal.getsignal(signal.SIGTERM)

    with processes.signals(stop, said.append):
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: len(said) == 1)
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: len(said) == 2)

    assert stop.is_set() and stop.crashed
    assert (stop.reason, said[1]) == (
        *("stopped by SIGTERM", "SIGINT: still stopping; what was saved is kept"),
    )
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_that_was_ignored_before_still_is():
    stop = processes.Stop()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with processes.signals(stop, print):
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.wait(0.1)
    finally:
        signal.signal(signal.SIGHUP, before)
