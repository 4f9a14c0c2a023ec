"""One stage: run once, heard whole, stopped whole, and judged by what it says of itself."""

import importlib
import inspect
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import dvc
import pytest
import repositories
from builders import limited, refused
from dvc.lock import make_lock
from survivors import marked, until
from workspace import ROOT

from pipeline.workflow import dvc_says, gpus, lockfile, processes, stage_run
from pipeline.workflow.processes import Stopped
from pipeline.workflow.stage_run import Failed, Outcome

GRAPH = """
stages:
  quick:
    cmd: echo "on GPU $CUDA_VISIBLE_DEVICES" && echo run >> runs && echo made > quick
    deps: [raw]
    outs: [quick]
  slow:
    cmd: python slow.py
    deps: [raw]
    outs: [slow]
  bars:
    cmd: python bars.py
    outs: [bars]
  careful:
    cmd: python careful.py
    deps: [raw]
    outs: [careful]
  folder:
    cmd: ulimit -S -f unlimited && mkdir -p folder && head -c 3000000 /dev/zero > folder/large
    outs: [folder]
"""
SCRIPTS = {
    "slow": """
import pathlib, signal, sys, time
def save(*_):
    time.sleep(0.2)
    pathlib.Path("saved").touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
pathlib.Path("begun").touch()
while not pathlib.Path("go").exists():
    time.sleep(0.01)
pathlib.Path("slow").write_text("made")
""",
    "bars": """
import pathlib, time
from rrcm.core import progress
progress.SECONDS_BETWEEN_LINES = 0
with progress.bar(4, 0, "train tiny: epoch", " steps") as bar:
    for _ in range(4):
        bar.update()
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
raise MemoryError("of another kind")
""",
    "careful": """
import pathlib, time
from pipeline import checked
from pipeline.runtime import graph
checked.load = lambda: None
def run():
    with graph.running("careful"):
        pathlib.Path("begun").touch()
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
        pathlib.Path("careful").touch()
graph.main(run)
""",
}
MEANWHILE = ThreadPoolExecutor()
CALLER = """
import sys, threading
from repositories import node
from pipeline.workflow import stage_run
stage_run.run(node(sys.argv[1]), stop=threading.Event(), say=print, progressed=print)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {"params.yaml": "none: 0\n", "raw": "raw\n"}
    files |= {f"{name}.py": script for name, script in SCRIPTS.items()}
    path = repositories.repository(tmp_path_factory.mktemp("made"), GRAPH, files)
    (path / ".dvc/tmp").mkdir(exist_ok=True)
    repositories.older_runs(path)
    return path


@pytest.fixture
def here(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: dict[str, str]
) -> Path:
    """A repository on a host of its own, before its stages run again; every process must end."""
    path = tmp_path / "here"
    shutil.copytree(made, path, symlinks=True)
    monkeypatch.chdir(path)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests/support'}")
    monkeypatch.setenv("RRCM_SLOTS_DIR", str(tmp_path / "slots"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    for name, value in marker.items():
        monkeypatch.setenv(name, value)
    return path


class Run:
    """A stage that is run meanwhile."""

    def __init__(self, name: str, *, forced: bool = False) -> None:
        self.stop, self.lines = Event(), []
        self.bars: list[tuple[float, str]] = []
        self._result = MEANWHILE.submit(
            stage_run.run,
            replace(repositories.node(name), forced=forced),
            stop=self.stop,
            say=self.lines.append,
            progressed=lambda *bar: self.bars.append(bar),
        )

    def end(self) -> stage_run.Result:
        """What `run` returned, or its error."""
        return self._result.result(120)


def test_what_dvc_did_is_told(here: Path):
    first = Run("quick")
    assert first.end().outcome is Outcome.DONE
    assert "on GPU 7" in first.lines
    (here / "quick").unlink()
    assert Run("quick").end().outcome is Outcome.DONE  # from the cache of runs
    assert (here / "runs").read_text() == "run\n"
    assert Run("quick", forced=True).end().outcome is Outcome.DONE
    assert Run("quick").end().outcome is Outcome.CACHED
    assert (here / "runs").read_text() == "run\n" * 2


def test_two_runs_of_a_stage_at_once_run_it_once(here: Path):
    first = Run("slow")
    until((here / "begun").exists)
    second = Run("slow")
    until(lambda: second.lines)
    assert second.lines == ["waiting for another run of slow in this checkout"]
    third = Run("slow")
    until(lambda: third.lines)
    third.stop.set()
    with refused(Stopped, "slow"):
        third.end()
    (here / "go").touch()

    assert first.end().outcome is Outcome.DONE
    assert second.end().outcome is Outcome.CACHED


def test_a_stop_lets_the_stage_save_and_leaves_nothing_behind(here: Path):
    before, run = lockfile.read()["slow"], Run("slow")
    until((here / "begun").exists)
    run.stop.set()
    with refused(Stopped, "slow: stopped"):
        run.end()

    assert (here / "saved").exists()
    assert not marked(os.environ)
    assert not any(json.loads((here / ".dvc/tmp/rwlock").read_text()).values())
    assert lockfile.read()["slow"] == before


def test_a_killed_caller_takes_its_stage_with_it_and_frees_its_slot(here: Path):
    with subprocess.Popen([sys.executable, "-c", CALLER, "slow"]) as caller:
        until((here / "begun").exists)
        with pytest.raises(Stopped):
            stop = Event()
            with gpus.taken(1, stop=stop, say=lambda _: stop.set()):
                pass
        caller.kill()
    with gpus.taken(1, stop=Event(), say=lambda _: None):
        assert (here / "saved").exists()
        until(lambda: not marked(os.environ))


def test_a_finished_stage_is_kept_though_it_is_stopped_while_dvc_waits_to_save_it(here: Path):
    """Another DVC process may hold the lock for long; DVC by itself would give up after 3 s."""
    before, run = lockfile.read()["slow"], Run("slow")
    until((here / "begun").exists)
    with make_lock(str(here / ".dvc/tmp/lock")):
        (here / "go").touch()
        until(lambda: not [p for p in marked(os.environ) if "slow.py" in p.cmdline()])
        time.sleep(2)
        run.stop.set()
        time.sleep(2)
    assert run.end().outcome is Outcome.DONE
    assert lockfile.read()["slow"] != before


def test_bars_are_progress_and_a_failure_tells_the_last_lines(here: Path):
    run = Run("bars")
    until(lambda: 25 in [percent for percent, _ in run.bars])  # though its line has not ended
    (here / "go").touch()
    with pytest.raises(Failed, match="bars: failed\n") as caught:
        run.end()
    percents = [percent for percent, _ in run.bars]

    assert percents == sorted(percents)
    assert percents[-1] == 100
    assert run.bars[-1][1].startswith("train tiny: epoch: 4.00/4.00 [")
    assert "MemoryError: of another kind" in str(caught.value)
    assert "exited with 1" in str(caught.value)
    assert "%|" not in str(caught.value)
    assert caught.value.retryable


def test_an_error_of_the_stage_itself_takes_a_line_and_changes_no_entry(here: Path):
    before, run = lockfile.read()["careful"], Run("careful")
    until((here / "begun").exists)
    (here / "raw").write_text("edited")
    (here / "go").touch()
    with refused(Failed, "careful: code, parameters or data changed while it ran") as caught:
        run.end()
    assert not caught.value.retryable and lockfile.read()["careful"] == before


def test_what_the_cache_could_not_keep_is_a_failure_though_dvc_ends_well(here: Path):
    with limited(1_000_000), pytest.raises(Failed, match="failed to transfer") as caught:
        Run("folder").end()

    assert caught.value.retryable


def test_a_stage_that_dvc_finds_busy_may_be_tried_again(here: Path):
    """And half a file of path locks, which a killed DVC leaves, stops nothing."""
    mine = {"pid": os.getpid(), "cmd": "a test"}
    busy = here / ".dvc/tmp/rwlock"
    busy.write_text(json.dumps({"write": {str(here / "quick"): mine}, "read": {}}))
    with pytest.raises(Failed, match="is busy") as caught:
        Run("quick").end()
    assert caught.value.retryable

    busy.write_text('{"write": {"a": {"pid": 12')
    assert Run("quick").end().outcome is Outcome.DONE


BEGAN = "Running stage 'a':"
SAID = "ERROR: failed to reproduce 'a': failed to run: python -m a, exited with"


@pytest.mark.parametrize(
    ("lines", "told", "retryable"),
    [
        (["error: an earlier one", "error: p.yaml: no", f"{SAID} 65"], "a: p.yaml: no", False),
        (["error: a: stopped", f"{SAID} 75"], "a: stopped", True),
        (["Traceback:", "MemoryError", f"{SAID} 1"], "a: failed\n", True),
        (["error: of one that went well", "ERROR: Unable to acquire lock."], "a: failed\n", True),
    ],
)  # fmt: skip
def test_the_exit_code_of_a_stage_says_whether_a_person_must_mend_it(
    lines: list[str], told: str, retryable: bool
):
    said, bars = [], []
    output = stage_run.Output("a", say=said.append, progressed=lambda *bar: bars.append(bar))
    text = "\n".join([BEGAN, "σ = 0.5", "fit:  50%|##  | 1/2 [0:01]", *lines])
    code = "import os, sys\nfor byte in sys.argv[1].encode(): os.write(1, bytes([byte]))"
    command = [sys.executable, "-c", code, text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        for line, whole in processes.output(process, Event()):  # however it arrives
            output.feed(line) if whole else output.progress(line)
    failed = output.failure(255)

    assert said == text.split("\n")
    assert bars[-1] == (50.0, "fit: 1/2 [0:01]")
    assert failed.retryable is retryable
    assert str(failed).startswith(told)
    assert str(failed) == told or str(failed).endswith(lines[-1])
    again = pickle.loads(pickle.dumps(failed))
    assert (str(again), again.retryable) == (str(failed), retryable)


@pytest.mark.parametrize(
    ("name", "module", "text"),
    [
        ("EXITED", "dvc.stage.exceptions", '", exited with {status}"'),
        ("UNKEPT", "dvc_data.hashfile.transfer", "failed to transfer"),
        ("UNPUSHED", "dvc.data_cloud", "Some of the cache files do not exist"),
    ],
)
def test_dvc_words_its_messages_as_before(name: str, module: str, text: str):
    plain = text.strip('"').partition("{")[0]
    assert plain in getattr(dvc_says, name).pattern
    assert text in inspect.getsource(importlib.import_module(module)), (
        f"DVC {dvc.__version__}: {module} does not say {text!r}; see what it says instead, and "
        f"renew {name} in pipeline/workflow/dvc_says.py"
    )
