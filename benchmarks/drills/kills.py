"""Kills stages at single file operations: ``python -m benchmarks.drills.kills``, in a table.

A stage of every kind, and `rrcm certify`, runs on a miniature of the digits. Its operations on
files are counted (operations.py). Then it runs again for each of them, is killed by SIGKILL just
before it, or in the midst of it if it is a write, and is started once more without a kill. What is
there then must be, byte for byte, what an uninterrupted run makes. Before every other new start the
outputs are removed, as DVC does. ``--kills N`` tries N operations of each, taken by chance.

Runs are forks of one process that has imported everything. What touches no file and takes long is
done once for all: networks are traced for ONNX, and params.yaml is parsed. DVC's hashes are taken
as given.

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
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "RRCM_SAVE_SECONDS": "0"}  # read at imports, below
os.environ.pop("DVC_ROOT", None)
sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))

import onnx
import psutil
import survivors
import workspace
from workspace import EVAL, RUN, Workspace

from benchmarks.drills.operations import End, Operations, Started, share
from pipeline.runtime import graph
from rrcm.config import params, sections
from rrcm.core import pool
from rrcm.data.datasets import digits
from rrcm.data.ingest.listing import Listing
from rrcm.inference import export
from rrcm.models.trained.base import checkpoint

IMAGES = 200  # that the stage shard has of 1,797; training has all of them
EACH = sys.maxsize  # kills of a kind: as many as it has operations
GONE = 5.0  # seconds after which nothing may be left of what a killed process had started
CERTIFY = "rrcm"  # the command, among names of stages
ASKED = ("certify", "--model", "tiny", "--sigma", "0.5", "--n", "300")


@dataclass(frozen=True)
class Kind:
    """Something to run: a stage as in dvc.yaml, or `rrcm certify`; and patterns of its outputs."""

    name: str
    outputs: tuple[str, ...]

    @property
    def stage(self) -> str:
        """The kind of stage; of `rrcm certify` nothing."""
        return "" if self.name == CERTIFY else self.name.partition("@")[0]

    @property
    def title(self) -> str:
        """As in the table."""
        return f"stage {self.stage}" if self.stage else "certify on demand"

    def start(self, *, at: int | None = None) -> Started:
        """Run it in a fork of this process, to be killed at operation ``at``."""
        return Started(self._run, Operations(Path.cwd(), at))

    def _run(self, operations: Operations) -> None:
        os.cpu_count = lambda: 1  # so that the order of operations is the same each time
        graph.digest = lambda name: hashlib.sha256(name.encode()).hexdigest()
        checkpoint.save_file = operations.native(checkpoint.save_file)
        digits.listing, export._trace = _few, _traced
        if self.stage:
            os.environ["DVC_STAGE"], sys.argv = self.name, [self.stage]
            sys.modules.pop(f"pipeline.stages.{self.stage}", None)
            runpy.run_module(f"pipeline.stages.{self.stage}", run_name="__main__")
        else:
            sys.argv = [CERTIFY, *ASKED]
            import_module("cli").main()


listing, trace = digits.listing, export._trace


def _few(root: Path, link: Path) -> Listing:
    """The first digits, for shards of which each write is a kill."""
    whole = listing(root, link)
    few = {key: getattr(whole, key)[:IMAGES] for key in ("idx", "labels", "held", "images")}
    return replace(whole, **few)


def _traced(*given: Any, **named: Any) -> onnx.ModelProto:
    """The graph of a network, which is traced once: that takes seconds, and touches no file."""
    here = Path.cwd()
    kept = here.with_name(f"{here.name}-{os.environ['DVC_STAGE']}.onnx")
    if not kept.exists():
        onnx.save(trace(*given, **named), kept)
    return onnx.load(kept)


# A stage of every kind of dvc.yaml, and a command of ours.
KINDS = (
    Kind("shard", ("shards/**/*",)),
    Kind("pretrain@tiny", ("pretrained/tiny/*",)),
    Kind(f"train@{RUN}", (f"models/{RUN}/*",)),
    Kind("denoise@told", ("denoisers/told/*",)),
    Kind(f"export@{RUN}", (f"onnx/{RUN}.onnx",)),
    Kind("member@first", ("ensembles/tiny-both-s050/1/*",)),
    Kind("combine@tiny-both-s050", ("models/tiny-both-s050/*", "onnx/tiny-both-s050.onnx")),
    Kind(
        "purify@tiny-densepure-s050",
        ("models/tiny-densepure-s050/*", "onnx/tiny-densepure-s050.onnx"),
    ),
    Kind("represent@tiny", ("represented/tiny/*",)),
    Kind("generate@told", ("generated/told/**/*",)),
    Kind(f"sample@{EVAL}", (f"votes/{EVAL}.jsonl",)),
    Kind(f"certify@{EVAL}", (f"certificates/{EVAL}.csv",)),
    Kind("report", ("report/**/*", "metrics/*.json")),
    Kind(CERTIFY, (".rrcm/votes/*.json*", "results/*")),
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the exit code is 1 if anything was lost."""
    parser = argparse.ArgumentParser(prog="kills", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkout", type=Path, help="one that is finished, to copy; else is made")
    parser.add_argument(
        "--only", default="", help="kinds, with commas; and twice, orphans, devices"
    )
    parser.add_argument("--kills", type=int, default=0, help="at most, of each kind; else all")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        made = Workspace(given.checkout) if given.checkout else make(Path(folder) / "made")
        warm()
        tasks = [(made, Path(folder) / f"{i}", *task) for i, task in enumerate(planned(given))]
        print("| what | operations | kills | the same bytes after | lost | tracebacks |")
        print("|---|---|---|---|---|---|", flush=True)
        rows = []
        for row in pool.spread(drill, tasks, workers=os.cpu_count() or 1):
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
    """A miniature checkout that has all kinds of stages, after `dvc repro`."""
    path.mkdir()
    made = workspace.create(path)
    made.edit(workspace.add)
    made.edit(shrink)
    made.run("rrcm", "data", "digits")
    made.repro()
    return made


def shrink(whole: dict[str, Any]) -> None:
    """Have every operation once or twice, and not hundreds of times: each of them is a kill."""
    whole["data"] |= {"test": 10, "shard_size": 70}  # an image of each class; several shards
    whole["models"]["tiny"]["size"] = "16x1x2"
    whole["models"]["told"]["condition"] = 16  # the width of that
    whole["pretrain"]["tiny"]["steps"] = 3  # progress is saved at each
    for recipe in whole["recipes"].values():
        recipe |= {"epochs": 1, "batch_size": 600}  # two steps
    whole["denoisers"]["told"]["steps"] = 3
    whole["evals"] = {EVAL: whole["evals"][EVAL]}  # each is a few files more of the report


def warm() -> None:
    """Import what all runs need, and start no thread; and have params.yaml parsed but once."""
    import torch

    torch.set_num_threads(1)
    known = cache(sections.read_yaml)
    sections.read_yaml = params.read_yaml = lambda path: deepcopy(known(path))
    for name in ("cli", *(f"pipeline.stages.{kind.stage}" for kind in KINDS if kind.stage)):
        import_module(name)


# Rows that are no kind by itself, and how often each is tried: they are a matter of chance.
TRIES = {f"twice {CERTIFY}": 6, "twice sample": 6, "orphans": 6, "devices": 2}
SLOW = ("shard", "report", "orphans", "purify", "combine", CERTIFY, "train", "export", "denoise")


def planned(given: argparse.Namespace) -> list[tuple[str, int]]:
    """(what, how often at most), the longest first."""
    most = dict.fromkeys((kind.stage or CERTIFY for kind in KINDS), EACH) | TRIES
    names = given.only.split(",") if given.only else [*most]
    names = [full for name in names for full in most if full == name or full.startswith(f"{name} ")]
    names.sort(key=lambda name: SLOW.index(name) if name in SLOW else len(SLOW))
    return [(name, min(most[name], given.kills or EACH)) for name in names]


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
        kind = next(kind for kind in KINDS if last in (kind.stage, kind.name))
        return (together if how else kills)(checkout, kind, most)
    finally:
        os.chdir(path.parent)
        shutil.rmtree(path)


def kills(checkout: Workspace, kind: Kind, most: int) -> Row:
    """Kill a run at each of its operations, or at ``most`` of them, writes the last to count."""
    found, whole = uninterrupted(checkout, kind)
    row = Row(kind.title, operations=len(found))
    order = sorted(range(len(found)), key=lambda i: (found[i] == "write", random.random()))
    for number, at in enumerate(sorted(i + 1 for i in order[:most])):
        clean(checkout, kind)
        if not kind.start(at=at).end().killed:
            continue  # how often progress is saved hangs on the clock: this one was done before
        row.kills += 1
        if number % 2:
            remove(checkout, kind)
        judge(row, checkout, kind, whole, [kind.start().end()])
    return row


def together(checkout: Workspace, kind: Kind, most: int) -> Row:
    """Start two runs at once, or nearly so; both must end well."""
    _, whole = uninterrupted(checkout, kind)
    row = Row(f"two processes: {kind.title}")
    for _ in range(most):
        clean(checkout, kind)
        first = kind.start()
        time.sleep(random.choice((0, random.random())))
        second = kind.start()
        row.kills += 1
        judge(row, checkout, kind, whole, [first.end(), second.end()])
    return row


def uninterrupted(checkout: Workspace, kind: Kind) -> tuple[list[str], dict[str, str]]:
    """The operations and the outputs of a run that nobody kills, the second one.

    Caches are filled then, and what it imports is imported here.
    """
    params.load()
    for _ in range(2):
        clean(checkout, kind)
        end = kind.start().end()
        if end.code:
            raise RuntimeError(f"{kind.name}: {end.output}")
        share(end)
    return end.operations, digests(checkout, kind)


def judge(
    row: Row, checkout: Workspace, kind: Kind, whole: dict[str, str], ends: list[End]
) -> None:
    """Count what the last runs made and said."""
    traced = any("Traceback" in end.output for end in ends)
    same = digests(checkout, kind) == whole
    row.tracebacks += traced
    if same and not any(end.code for end in ends):
        row.recovered += 1
    if not same or traced or any(end.code for end in ends):
        row.said += [f"--- {row.what}", *(end.output for end in ends)]


def digests(checkout: Workspace, kind: Kind) -> dict[str, str]:
    """SHA-256 of all outputs; parts of files that a kill left beside them are none."""
    paths = [path for pattern in kind.outputs for path in sorted(checkout.path.glob(pattern))]
    files = [path for path in paths if path.is_file() and path.suffix != ".part"]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def remove(checkout: Workspace, kind: Kind) -> None:
    """Remove the outputs; of a command of ours nobody does."""
    for pattern in kind.outputs if kind.stage else ():
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
    kind = KINDS[1]
    repro = ("dvc", "repro", "--single-item", "--force", "--no-run-cache", kind.name)
    checkout.edit(lambda p: p["pretrain"]["tiny"].update(steps=1000))
    checkout.run(*repro)
    whole = digests(checkout, kind)
    row = Row("stages whose `dvc` was killed, gone after 5 s")
    for _ in range(most):
        left = killed(checkout, repro, "pipeline.stages.pretrain")
        row.kills += 1
        row.recovered += not left
        row.said += [f"--- {row.what}: {left} left"] * bool(left)
    output = checkout.run(*repro)
    row.tracebacks += "Traceback" in output
    row.recovered -= digests(checkout, kind) != whole
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
