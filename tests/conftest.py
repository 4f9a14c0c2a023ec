import os
import signal
import sys
from functools import partial
from pathlib import Path

import pytest
import workspace
from workspace import Workspace

# Tests run side by side; golden values of training are those of one thread. So is what tests start:
# threads of several processes would wait for each other. PyTorch reads this when it is imported,
# by none of these: the process that only hands tests out does without it.
os.environ["OMP_NUM_THREADS"] = "1"

# An environment has `rrcm` alone; what a test starts in another folder finds `pipeline` here.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(workspace.ROOT), os.environ.get("PYTHONPATH")))
)

# What tests start compiles our modules once, and copies of a checkout have the result; tests
# themselves are compiled once, too.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Shells start background jobs with SIGINT ignored, nohup with SIGHUP, and what a test starts would
# inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder of all processes of this test run."""
    base = tmp_path_factory.getbasetemp()
    return base if worker_id == "master" else base.parent


@pytest.fixture(scope="session")
def finished(shared: Path) -> Workspace:
    """A miniature checkout after `dvc repro`; tests must not change it."""
    path = shared / "a finished workspace"  # paths with spaces must work
    return workspace.once(path, workspace.finish)


@pytest.fixture(scope="session")
def extended(shared: Path, finished: Workspace) -> Workspace:
    """`finished`, with tests/mini-more.yaml; tests must not change it."""
    return workspace.once(shared / "extended", partial(workspace.extend, finished))


@pytest.fixture
def checkout(finished: Workspace, tmp_path: Path) -> Workspace:
    """A copy of the finished checkout, to change at will."""
    return finished.copy(tmp_path / "a copy")


@pytest.fixture
def one_batch_a_task(monkeypatch):
    """Draws seem to take long, so that a worker gets no more than one batch at a time."""
    from builders import Clock

    monkeypatch.setattr("rrcm.certification.sampling.batching.time", Clock(1.0))


@pytest.fixture
def unforked(monkeypatch):
    """Networks are tried in this process, as on a GPU: a copy of one so large takes a while."""
    monkeypatch.setattr("rrcm.inference.foreign._probes.forked", lambda *_, **__: None)


@pytest.fixture
def undrawn(monkeypatch):
    """Figures of reports take seconds to save; here they are empty files."""
    saved = "rrcm.analysis.presentation.figures.save"
    monkeypatch.setattr(saved, lambda figure, path: path.write_text("<svg></svg>"))


@pytest.fixture(scope="module")
def browser():
    """Chromium; while it is open its tests are those of a running loop, and start none."""
    import browsers

    if browsers.path() is None:
        pytest.skip(browsers.NONE)
    with browsers.started() as browser:
        yield browser
