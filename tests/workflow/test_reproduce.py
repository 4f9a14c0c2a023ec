"""`rrcm repro`: whenever it is stopped or killed, dvc.lock is whole, and what was made is known."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from repositories import repository
from survivors import mark, marked, until
from workspace import ROOT, Workspace

from pipeline.workflow import lockfile

STAGES = 4
GRAPH = """
stages:
  part:
    foreach: [{names}]
    do:
      cmd: cp raw parts-${{item}} && sleep 0.2
      deps:
        - raw
      outs:
        - parts-${{item}}
  slow:
    cmd: touch begun; sleep 600
    deps: [parts-0]
    outs: [never]
  count:
    cmd: test ! -e broken && mkdir -p metrics && wc -c < raw > metrics/raw
    deps: [raw]
    metrics: [metrics: {{cache: false}}]
"""
# A `dvc` that takes its time when a stage's command is over and its files are being hashed.
SLOW_TO_SAVE = """
import os, pathlib, time
if os.environ.get("SLOW_TO_SAVE"):
    from dvc.stage import Stage
    save = Stage.save
    def slow(stage, *arguments, **more):
        if stage.addressing == "part@1":
            pathlib.Path("saving").touch()
            time.sleep(2)
        return save(stage, *arguments, **more)
    Stage.save = slow
"""
# A `dvc` that is killed when it has written a part of a file of YAML.
DIES_WRITING = """
import os, signal
if os.environ.get("DIES_WRITING"):
    from dvc.utils.serialize import _yaml
    dump = _yaml._dump
    def dies(data, stream):
        if "stages" not in data:  # an entry of the cache of runs
            return dump(data, stream)
        stream.write("schema: '2.0'\\nsta")
        stream.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    _yaml._dump = dies
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository in which `rrcm repro part` has ended."""
    path = tmp_path_factory.mktemp("reproduced") / "a checkout"
    names = ", ".join(str(number) for number in range(STAGES))
    repository(path, GRAPH.format(names=names), {"raw": "raw\n"})
    assert repro(path, "part").returncode == 0
    return path


@pytest.fixture
def here(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of it, whose every process must end with the test."""
    path = tmp_path / "here"
    shutil.copytree(done, path, symlinks=True)
    monkeypatch.chdir(path)
    for name, value in (marker := mark()).items():
        monkeypatch.setenv(name, value)
    yield path
    until(lambda: not marked(marker), seconds=60)


def start(path: Path, *arguments: str) -> subprocess.Popen[str]:
    return Workspace(path).start("rrcm", "repro", *arguments, PYTHONPATH=str(ROOT))


def repro(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    process = start(path, *arguments)
    output, _ = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, output)


def test_a_signal_ends_the_stage_and_nothing_of_dvc(here: Path):
    """As Ctrl-C does: all of the terminal's process group has it."""
    process = start(here, "--single-item", "slow")
    until((here / "begun").exists)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=120)

    assert process.returncode == 130
    assert output.endswith("interrupted; what was saved is kept, the same command goes on\n")
    assert "Traceback" not in output
    assert [*lockfile.read()] == [f"part@{number}" for number in range(STAGES)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_what_a_stage_has_made_is_taken_down_before_dvc_ends(
    number: int, code: int, here: Path, monkeypatch: pytest.MonkeyPatch
):
    """Else hours of work would lie there unknown, and the next run would delete them.

    The fixture sees that no process is left, though `rrcm repro` itself was killed.
    """
    before = lockfile.read()
    (here / "raw").write_text("another\n")
    (here / "sitecustomize.py").write_text(SLOW_TO_SAVE)  # which Python runs when it begins
    monkeypatch.setenv("SLOW_TO_SAVE", "yes")
    process = start(here, "part")
    until((here / "saving").exists)
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == code
    until(lambda: not marked(os.environ), seconds=60)
    changed = [name for name, entry in lockfile.read().items() if entry != before[name]]
    assert changed == ["part@0", "part@1"]  # and no further one was begun


def test_what_is_in_git_stays_until_its_successor_is_there(here: Path):
    metric, raw = here / "metrics/raw", here / "raw"
    assert repro(here, "count").returncode == 0
    first = metric.read_text()
    raw.write_text("longer than before\n")
    (here / "broken").touch()
    assert repro(here, "count").returncode == 255 and metric.read_text() == first
    (here / "broken").unlink()
    assert repro(here, "count").returncode == 0 and metric.read_text() != first

    metric.write_text("edited, and in no cache")
    raw.write_text("raw\n")
    assert "'count' is cached - skipping run" in repro(here, "count").stdout
    assert metric.read_text() == first


def test_without_the_raw_data_it_says_how_to_get_them(here: Path):
    shutil.copy(ROOT / "params.yaml", here)
    assert "not here" not in repro(here, "part").stdout
    (here / "raw").unlink()

    last = repro(here, "part").stdout.splitlines()[-1]
    assert last.startswith("data/digits is not here: `dvc pull data.dvc`")


def test_half_a_remembered_run_is_none(here: Path):
    """A kill after its folder was made, or in the midst of it, where a plain DVC fails for ever."""
    for number, run in enumerate(Path(".dvc/cache/runs").glob("*/*/*")):
        run.unlink()
        if number % 2:
            run.with_name(".a-part.tmp").write_text("cmd: cp raw parts-1\n")
    lockfile.LOCKFILE.unlink()
    again = repro(here, "part@1", "part@2")

    assert again.returncode == 0 and again.stdout.count("Running stage 'part@") == 2
    assert sorted(lockfile.read()) == ["part@1", "part@2"]


def test_dvc_lock_is_whole_though_dvc_is_killed_while_it_writes(here: Path, monkeypatch):
    """And what was made is known to the next run, from the cache of runs."""
    text = lockfile.LOCKFILE.read_text()
    (here / "raw").write_text("another\n")
    (here / "sitecustomize.py").write_text(DIES_WRITING)
    monkeypatch.setenv("DIES_WRITING", "yes")
    assert repro(here, "part@0").returncode == 128 + signal.SIGKILL
    assert lockfile.LOCKFILE.read_text() == text
    monkeypatch.delenv("DIES_WRITING")

    again = repro(here, "part@0")
    assert "Stage 'part@0' is cached - skipping run" in again.stdout
    assert lockfile.read()["part@0"] != lockfile.parsed(text)["part@0"]


def test_what_a_plain_dvc_leaves_of_a_file_is_resolved_and_nothing_runs(here: Path):
    """It writes in place, so that a kill or a full disk may cut the file, wherever."""
    text, known = lockfile.LOCKFILE.read_text(), lockfile.read()
    for end in (20, text.index("  part@2:"), len(text) - 40):
        lockfile.LOCKFILE.write_text(text[:end])
        done = repro(here, "part")
        if done.returncode:
            assert done.stdout.startswith("error: dvc.lock: ") and "`rrcm resolve`" in done.stdout
            lockfile.LOCKFILE.unlink()  # this folder has no history
            done = repro(here, "part")

        assert done.returncode == 0 and "Running stage" not in done.stdout, end
        assert lockfile.read() == known
