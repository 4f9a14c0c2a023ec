"""Kills aimed at dvc.lock while DVC writes it: ``python -m benchmarks.drills.lock [--tries 50]``.

A graph of many small stages runs in a folder of its own, and receives a signal each time the file
changes, at slightly varied moments. No file may be truncated and no entry lost.

Then each process that writes the file, DVC included, is killed at each of its file operations and
restarted. None may leave a truncated file, and the final file must be, byte for byte, the one
without a kill. The printed rows are those of docs/reliability.md.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dvc.cli import main as dvc
from ruamel.yaml import YAML

from benchmarks.drills.operations import End, Operations, Started, share
from pipeline.workflow import careful_dvc, lockfile
from rrcm.core.files import sha256

ROOT = Path(__file__).parents[2]
LOCK = Path("dvc.lock")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
STAGES, FILES = 12, 60  # the file is as large as that of a preset with some hundred stages
BIN = Path(sys.executable).parent
LATE = 120.0  # seconds
FEW = (2, 1)  # stages and files of the graph that is killed at every operation


@dataclass
class Count:
    """Counts of outcomes of the tries of one way of running the graph."""

    tries: int = 0  # signals, or operations with a kill
    cut: int = 0  # files truncated after the signal
    lost: int = 0  # entries that the next `rrcm repro` does not restore
    tracebacks: int = 0
    failed: int = 0  # commands after a try that failed
    left: int = 0  # processes that still ran after the next command

    @property
    def bad(self) -> bool:
        """Whether anything was lost for good, or went wrong."""
        return bool(self.lost or self.tracebacks or self.failed or self.left)


def main() -> None:
    """Run the drill, and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=24, help="Signals.")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # an ignored signal would be inherited
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    chance = random.Random(0)
    print("| way | signals | files cut | entries lost after the next `rrcm repro` | tracebacks |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        _begin(STAGES, FILES)
        count = Count()
        for number in range(given.tries):
            _try(SIGNALS[number % len(SIGNALS)], count, chance)
        cells = ("`rrcm repro`", count.tries, count.cut, count.lost, count.tracebacks)
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        failed |= count.bad or count.cut > 0
    print("\n| what is killed | operations | kills | files cut | lost | tracebacks |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        _begin(*FEW)
        for name, steps in AIMED.items():
            operations, count = _aimed(Path(folder), *steps)
            cells = (name, operations, count.tries, count.cut, count.lost, count.tracebacks)
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
            failed |= count.bad or count.tries < operations
            failed |= count.cut > 0
    sys.exit(failed)


def _begin(stages: int, files: int) -> None:
    subprocess.run([BIN / "dvc", "init", "--no-scm", "--quiet"], check=True)
    Path("raw").mkdir()
    for number in range(files):
        Path("raw", f"{number}").write_text("raw")
    graph = {
        f"part-{number}": {
            "cmd": f"cp changing made-{number}",
            "deps": ["changing", *(f"raw/{file}" for file in range(files))],
            "outs": [f"made-{number}"],
        }
        for number in range(stages)
    }
    with Path("dvc.yaml").open("w") as file:
        YAML().dump({"stages": graph}, file)
    Path("changing").write_text("0")
    subprocess.run([BIN / "rrcm", "repro", "--quiet"], check=True)


def _change() -> None:
    Path("changing").write_text("1")


def _reproduce() -> None:
    """Do the work of `rrcm repro` in one process."""
    careful_dvc.mend()
    careful_dvc.become_careful()
    os.environ["DVC_NO_ANALYTICS"] = "1"  # analytics would start another process
    sys.exit(dvc(["repro", "--quiet"]))


def _edit() -> None:
    """Write entries of workers, as `rrcm flow` does."""
    with lockfile.edited() as stages:
        stages["part-0"]["cmd"] = "another"


# Name -> the preparation, and the function that is killed.
AIMED: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "`rrcm repro` of two stages": (_change, _reproduce),
    "an edit by `rrcm flow`": (lambda: None, _edit),
}


def _aimed(
    begun: Path, before: Callable[[], object], run: Callable[[], object]
) -> tuple[int, Count]:
    """Kill ``run`` at each of its operations in a copy of ``begun``; return their number first."""
    count = Count()

    def started(at: int | None = None) -> End:
        done = Started(lambda _: run(), Operations(Path.cwd(), at, but=())).end()
        count.tracebacks += "Traceback" in done.output
        count.failed += not (done.killed or done.code == 0)
        return done

    with _copied(begun):
        before()
        share(started())
    with _copied(begun):
        before()
        operations, whole = len(started().operations), _digests()
    for at in range(1, operations + 1):
        with _copied(begun):
            before()
            old = LOCK.read_bytes()
            count.tries += started(at).killed
            count.cut += LOCK.read_bytes() != old and len(_entries(FEW[1])) < FEW[0]
            started()
            count.lost += _digests() != whole
    return operations, count


@contextmanager
def _copied(folder: Path) -> Iterator[None]:
    """Change to a copy of a folder during the block."""
    with tempfile.TemporaryDirectory() as place:
        path = shutil.copytree(folder, Path(place, "copy"), symlinks=True)
        with chdir(path):
            yield


def _digests() -> dict[str, str]:
    """Digests of the outputs of the graph and of dvc.lock."""
    return {path.name: sha256(path) for path in (LOCK, *Path().glob("made-*"))}


def _try(number: int, count: Count, chance: random.Random) -> None:
    """End one `rrcm repro` by a signal while dvc.lock is written, and run another after it."""
    Path("changing").write_text(f"{time.time_ns()}")
    shutil.rmtree(".dvc/cache/runs", ignore_errors=True)
    before = _stamp()
    process = subprocess.Popen(
        [BIN / "rrcm", "repro"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    deadline = time.monotonic() + LATE
    for _ in range(chance.randint(1, 4)):  # not always at the first stage
        while _stamp() == before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.0005)
        before = _stamp()
    time.sleep(chance.uniform(0, 0.05))
    os.killpg(process.pid, number)
    said, _ = process.communicate(timeout=LATE)
    while _at_work() and time.monotonic() < deadline:
        time.sleep(0.05)
    count.tries += 1
    count.tracebacks += "Traceback" in said
    count.cut += len(_entries()) < STAGES
    after = subprocess.run(
        [BIN / "rrcm", "repro", "--dry"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    count.tracebacks += "Traceback" in after.stderr + after.stdout
    count.failed += after.returncode != 0
    count.lost += STAGES - len(_entries())
    count.left += _at_work()


def _stamp() -> tuple[int, int, int]:
    try:
        found = LOCK.stat()
    except FileNotFoundError:
        return (0, 0, 0)
    return found.st_ino, found.st_size, found.st_mtime_ns


def _entries(files: int = FILES) -> list[str]:
    """The stages that have an entry with all of its files."""
    try:
        stages = YAML(typ="safe").load(LOCK)["stages"]
        return [name for name, entry in stages.items() if len(entry["deps"]) == files + 1]
    except Exception:  # a truncated file may raise any error
        return []


def _at_work() -> int:
    """The number of processes in this folder."""
    here, found = os.getcwd(), 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found += os.readlink(folder / "cwd") == here and int(folder.name) != os.getpid()
        except OSError:
            pass
    return found


if __name__ == "__main__":
    main()
