"""Kills, aimed: ``python -m benchmarks.drills.kills`` prints a table of what each left behind.

Every kind of stage, and `rrcm certify`, runs on a miniature of the digits. Its operations on files
are counted (operations.py). Then it runs again and again, is killed by SIGKILL just before one of
them, or in the midst of it if it is a write, and is started once more without a kill. What is there
then must be, byte for byte, what an uninterrupted run makes. Before every other new start the
outputs are removed, as DVC does.

Runs are forks of one process that has imported everything. What native code writes by itself
(safetensors, DVC's hashes, which are taken as given) is met only before and after.

Further rows: two processes at the same work at the same time; and processes of stages and of
devices whose starter is killed, which must be gone after 5 s.
"""

import argparse
import hashlib
import os
import random
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "RRCM_SAVE_SECONDS": "0"}  # read at imports, below
os.environ.pop("DVC_ROOT", None)
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import psutil
import survivors
import workspace
from workspace import EVAL, RUN, Workspace

from benchmarks.drills.operations import Operations
from pipeline import graph
from rrcm import processes

GONE = 5.0  # seconds after which nothing may be left of what a killed process had started
ASKED = ("certify", "--model", "tiny", "--sigma", "0.5", "--n", "300")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Something that is run: a stage of the graph, or a command of ours."""

    name: str
    arguments: tuple[str, ...]
    outputs: tuple[str, ...]  # patterns

    def run(self) -> None:
        """Run it, in this process, to its end."""
        module = "cli" if self.name == "rrcm" else f"pipeline.{self.name}"
        os.environ["DVC_STAGE"] = "@".join((self.name, *self.arguments))
        sys.argv = [self.name, *self.arguments]
        if module == "cli":
            import_module(module).main()
        else:
            sys.modules.pop(module, None)
            runpy.run_module(module, run_name="__main__")


KINDS = (
    Kind(name="shard", arguments=(), outputs=("shards/**/*",)),
    Kind(name="pretrain", arguments=("tiny",), outputs=("pretrained/tiny/*",)),
    Kind(name="train", arguments=(RUN,), outputs=(f"models/{RUN}/*",)),
    Kind(name="export", arguments=(RUN,), outputs=(f"onnx/{RUN}.onnx",)),
    Kind(name="sample", arguments=(EVAL,), outputs=(f"votes/{EVAL}.jsonl",)),
    Kind(name="certify", arguments=(EVAL,), outputs=(f"certificates/{EVAL}.csv",)),
    Kind(name="report", arguments=(), outputs=("report/**/*", "metrics/*.json")),
    Kind(name="rrcm", arguments=ASKED, outputs=(".rrcm/votes/*.json*", "results/*")),
)


@dataclass
class Row:
    """A line of the table."""

    what: str
    operations: int | str = "–"
    kills: int = 0
    recovered: int = 0
    tracebacks: int = 0
    said: list[str] = field(default_factory=list)  # what a start after a loss printed

    @property
    def good(self) -> bool:
        """Whether nothing was lost, and nothing failed with a traceback."""
        return self.recovered == self.kills and not self.tracebacks


@dataclass(frozen=True)
class End:
    """How a run ended: its exit code, what it printed, and the operations that it did."""

    code: int
    output: str
    operations: list[str]


class Started:
    """A run in a fork of this process, in the current folder."""

    def __init__(self, kind: Kind, *, at: int | None = None) -> None:
        """Start it, to be killed at operation ``at``."""
        self._output, self._seen = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        sys.stdout.flush()
        if not (pid := os.fork()):
            os._exit(self._child(kind, at))
        self.pid = pid

    def _child(self, kind: Kind, at: int | None) -> int:
        for stream in (1, 2):
            os.dup2(self._output.fileno(), stream)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
        os.cpu_count = lambda: 1  # so that the order of operations is the same each time
        graph.digest = lambda name: hashlib.sha256(name.encode()).hexdigest()
        operations, code = Operations(Path.cwd(), at), 0
        operations.install()
        try:
            kind.run()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            if isinstance(ended.code, str):
                print(ended.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
            code = 70
        sys.stdout.flush()
        sys.stderr.flush()
        self._seen.write("\n".join(operations.seen).encode())
        self._seen.flush()
        return code

    def end(self) -> End:
        """Wait for it."""
        _, status = os.waitpid(self.pid, 0)
        texts = []
        for file in (self._output, self._seen):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
            file.close()
        return End(os.waitstatus_to_exitcode(status), texts[0], texts[1].split())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the exit code is 1 if anything was lost."""
    parser = argparse.ArgumentParser(prog="kills", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkout", type=Path, help="one that is finished, to copy; else is made")
    parser.add_argument(
        "--only", default="", help="kinds, with commas; and twice, orphans, devices"
    )
    parser.add_argument("--kills", type=int, default=0, help="at most, of each kind")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        made = Workspace(given.checkout) if given.checkout else make(Path(folder) / "made")
        warm()
        tasks = [(made, Path(folder) / f"{i}", *task) for i, task in enumerate(planned(given))]
        print("| what | operations | kills | the same bytes after | lost | tracebacks |")
        print("|---|---|---|---|---|---|", flush=True)
        rows = []
        for row in processes.spread(drill, tasks, workers=os.cpu_count() or 1):
            rows.append(row)
            lost = row.kills - row.recovered
            cells = (row.what, row.operations, row.kills, row.recovered, lost, row.tracebacks)
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
    print(
        f"\n{time.monotonic() - began:.0f} s",
        *(line for row in rows for line in row.said),
        sep="\n",
    )
    return int(not all(row.good for row in rows))


def make(path: Path) -> Workspace:
    """A miniature checkout, after `dvc repro`."""
    path.mkdir()
    made = workspace.create(path)
    made.run("rrcm", "data", "digits")
    made.repro()
    return made


def warm() -> None:
    """Import what any run needs, and start no thread."""
    import torch

    torch.set_num_threads(1)
    for name in ("cli", *(f"pipeline.{kind.name}" for kind in KINDS if kind.name != "rrcm")):
        import_module(name)
    for name in ("onnxruntime", "onnxscript", "matplotlib.pyplot", "rrcm.checking"):
        import_module(name)
    for folder in ("models", "methods", "objectives", "stopping", "certificates", "noises"):
        for path in Path("rrcm", folder).glob("[a-z]*.py"):
            import_module(f"rrcm.{folder}.{path.stem}")
    for name in ("rrcm.backends.onnx", "rrcm.folding.vit", "rrcm.data.digits"):
        import_module(name)


MOST = {"shard": 40, "pretrain": 16, "train": 16, "export": 6, "sample": 24, "certify": 24}
MOST |= {"report": 8, "rrcm": 24, "twice rrcm": 6, "twice sample": 6, "orphans": 6, "devices": 2}


def planned(given: argparse.Namespace) -> list[tuple[str, int]]:
    """(what, how often at most), the longest first."""
    names = given.only.split(",") if given.only else [*MOST]
    names = [full for name in names for full in MOST if full == name or full.startswith(f"{name} ")]
    slow = ("orphans", "devices", "export", "train", "pretrain", "report")
    names.sort(key=lambda name: slow.index(name) if name in slow else len(slow))
    return [(name, min(MOST[name], given.kills or MOST[name])) for name in names]


def drill(task: tuple[Workspace, Path, str, int]) -> Row:
    """A line of the table, from a copy of a finished checkout."""
    made, path, name, most = task
    random.seed(name)
    checkout = made.copy(path)
    os.chdir(path)
    try:
        if name == "orphans":
            return orphans(checkout, most)
        if name == "devices":
            return device_processes(checkout, most)
        how, _, last = name.rpartition(" ")
        kind = next(kind for kind in KINDS if kind.name == last)
        return (together if how else kills)(checkout, kind, most)
    finally:
        os.chdir(path.parent)
        shutil.rmtree(path)


def kills(checkout: Workspace, kind: Kind, most: int) -> Row:
    """Kill a run at each of its operations, or at ``most`` of them, writes the last to count."""
    whole = uninterrupted(checkout, kind)
    found = whole.end.operations
    row = Row(named(kind), operations=len(found))
    order = sorted(range(len(found)), key=lambda i: (found[i] == "write", random.random()))
    for number, at in enumerate(sorted(i + 1 for i in order[:most])):
        clean(checkout, kind)
        if Started(kind, at=at).end().code != -signal.SIGKILL:
            continue  # how often progress is saved hangs on the clock: this one was done before
        row.kills += 1
        if number % 2:
            remove(checkout, kind)
        judge(row, checkout, kind, whole, [Started(kind).end()])
    return row


def together(checkout: Workspace, kind: Kind, most: int) -> Row:
    """Start two runs at once, or nearly so; both must end well."""
    whole = uninterrupted(checkout, kind)
    row = Row(f"two processes: {named(kind)}")
    for _ in range(most):
        clean(checkout, kind)
        first = Started(kind)
        time.sleep(random.choice((0, random.random())))
        second = Started(kind)
        row.kills += 1
        judge(row, checkout, kind, whole, [first.end(), second.end()])
    return row


@dataclass(frozen=True)
class Whole:
    """What a run makes that nobody interrupts."""

    end: End
    files: dict[str, str]


def uninterrupted(checkout: Workspace, kind: Kind) -> Whole:
    """Such a run, the second one: caches are filled."""
    for _ in range(2):
        clean(checkout, kind)
        end = Started(kind).end()
    if end.code:
        raise RuntimeError(f"{kind.name}: {end.output}")
    return Whole(end, digests(checkout, kind))


def judge(row: Row, checkout: Workspace, kind: Kind, whole: Whole, ends: list[End]) -> None:
    """Count what the last runs made and said."""
    traced = any("Traceback" in end.output for end in ends)
    same = digests(checkout, kind) == whole.files
    row.tracebacks += traced
    if same and not any(end.code for end in ends):
        row.recovered += 1
    if not same or traced or any(end.code for end in ends):
        row.said += [f"--- {row.what}", *(end.output for end in ends)]


def named(kind: Kind) -> str:
    """As in the table."""
    return "certify on demand" if kind.name == "rrcm" else f"stage {kind.name}"


def digests(checkout: Workspace, kind: Kind) -> dict[str, str]:
    """SHA-256 of all outputs; parts of files that a kill left beside them are none."""
    paths = [path for pattern in kind.outputs for path in sorted(checkout.path.glob(pattern))]
    files = [path for path in paths if path.is_file() and path.suffix != ".part"]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def remove(checkout: Workspace, kind: Kind) -> None:
    """Remove the outputs; of a command of ours nobody does."""
    for pattern in kind.outputs if kind.name != "rrcm" else ():
        shutil.rmtree(checkout.path / pattern.partition("/*")[0], ignore_errors=True)
        for path in checkout.path.glob(pattern):
            path.unlink(missing_ok=True)


def clean(checkout: Workspace, kind: Kind) -> None:
    """Have it all to be done again."""
    remove(checkout, kind)
    for scratch in (".rrcm/resume", ".rrcm/votes", "results"):
        shutil.rmtree(checkout.path / scratch, ignore_errors=True)


def orphans(checkout: Workspace, most: int) -> Row:
    """Kill `dvc repro` while a stage runs; the stage must end, and the next `dvc repro` go on."""
    stage, kind = "pretrain@tiny", KINDS[1]
    repro = ("dvc", "repro", "--single-item", "--force", "--no-run-cache", stage)
    checkout.edit(lambda p: p["pretrain"]["tiny"].update(steps=400))
    checkout.run(*repro)
    whole = Whole(End(0, "", []), digests(checkout, kind))
    row = Row("stages whose `dvc` was killed, gone after 5 s")
    for _ in range(most):
        left = killed(checkout, repro, "pipeline.pretrain")
        row.kills += 1
        row.recovered += not left
        row.said += [f"--- {row.what}: {left} left"] * bool(left)
    output = checkout.run(*repro)
    row.tracebacks += "Traceback" in output
    row.recovered -= digests(checkout, kind) != whole.files
    return row


def device_processes(checkout: Workspace, most: int) -> Row:
    """Kill `rrcm certify --devices cpu,cpu`; the processes of its devices must end."""
    row = Row("devices whose `rrcm certify` was killed, gone after 5 s")
    command = ("rrcm", *ASKED[:-1], "4000000", "--stop", "none", "--devices", "cpu,cpu")
    for _ in range(most):
        left = killed(checkout, command, "--shard")
        row.kills += 1
        row.recovered += not left
        row.said += [f"--- {row.what}: {left} left"] * bool(left)
    return row


def killed(checkout: Workspace, command: Sequence[str], word: str) -> int:
    """Kill a command a moment after it has started one with a word; how many are left after 5 s."""
    mark = survivors.mark()
    process = checkout.start(*command, **mark)
    survivors.until(lambda: any(word in told(one) for one in survivors.marked(mark)), seconds=120)
    time.sleep(4 * random.random())
    os.kill(process.pid, signal.SIGKILL)
    time.sleep(GONE)
    left = survivors.marked(mark)
    for one in left:
        one.kill()
    process.communicate()
    return len(left)


def told(process: psutil.Process) -> list[str]:
    """The command of a process, which may have ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


if __name__ == "__main__":
    sys.exit(main())
