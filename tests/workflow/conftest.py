"""A server of Prefect that asks for a secret, and processes that must end with their test."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import servers
from servers import Server
from survivors import mark, marked

from pipeline.workflow.flow import environment
from pipeline.workflow.flow import server as flow_server
from pipeline.workflow.processes import Stop
from rrcm.serving.listener import listen

LEAN = {  # without what only schedules need
    f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false"
    for service in ("SCHEDULER", "LATE_RUNS", "FOREMAN", "TRIGGERS", "PAUSE_EXPIRATIONS")
}


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """As `rrcm flow up` starts it, in a folder that all users may enter: what refuses them is ours.

    The folder of the secret was there before, open to everyone.
    """
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch, listen("127.0.0.1", 0) as listener:
        patch.chdir(folder)
        environment.HOME.mkdir(parents=True)
        environment.HOME.chmod(0o777)
        with environment.alone():
            servers.place(environment.HOME)
        own = environment.settings("127.0.0.1", listener, environment.secret())
        for name, value in own.items():
            patch.setenv(name, value)
        environment.publish()
        home = {"PREFECT_HOME": str(environment.HOME.absolute()), "DO_NOT_TRACK": "1"}
        command, file = environment.command(listener), listener.fileno()
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, env=os.environ | LEAN | home, pass_fds=(file,), stdout=log, stderr=log
            )
        try:
            assert flow_server._begun(process, Stop())
            patch.undo()
            with Server(folder, process, own) as asked:
                asked.make("work_pools/", name=environment.POOL, type="process")
                yield asked
        finally:
            process.terminate()
            process.wait(300)
            shutil.rmtree(folder)


@pytest.fixture
def marker() -> Iterator[dict[str, str]]:
    """An environment; whoever has it after the test is stopped, and the test has failed."""
    environment = mark()
    yield environment
    left = marked(environment)
    for process in left:
        process.kill()
    assert not left
