"""Kills stages at single file operations: ``python -m benchmarks.drills.kills``, in a table.

A stage of every kind, and `rrcm certify`, runs on a miniature of the digits. Its file operations
are counted (operations.py). Then, for each operation, it runs again, is killed by SIGKILL just
before the operation, or in the middle of a write, and is restarted without a kill. The outputs must
then be, byte for byte, those of an uninterrupted run. Before every second restart the outputs are
removed, as DVC does. ``--kills N`` tries N random operations of each.

Runs are forks of one process that has imported everything. Slow work that touches no file is done
once for all runs: tracing networks for ONNX, and parsing params.yaml. DVC's hashes are not
computed.

Further rows: two processes with the same work at the same time.
"""

import argparse
import hashlib
import os
import random
import runpy
import shutil
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
import workspace
from workspace import EVAL, RUN, Workspace

from benchmarks.drills.operations import End, Operations, Started, share
from pipeline.runtime import graph
from rrcm.config import params, sections
from rrcm.core import pool, schema
from rrcm.data.datasets import digits
from rrcm.data.ingest.listing import Listing
from rrcm.inference import export
from rrcm.models.trained.base import checkpoint

IMAGES = 200  # of 1,797, for the stage shard; training has all of them
EACH = sys.maxsize  # kills per kind: as many as it has operations
CERTIFY = "rrcm"  # the command, among names of stages
ASKED = ("certify", "--model", "tiny", "--sigma", "0.5", "--n", "300")


@dataclass(frozen=True)
class Kind:
    """Something to run: a stage as in dvc.yaml, or `rrcm certify`; and patterns of its outputs."""

    name: str
    outputs: tuple[str, ...]

    @property
    def stage(self) -> str:
        """The kind of stage; empty for `rrcm certify`."""
        return "" if self.name == CERTIFY else self.name.partition("@")[0]

    @property
    def title(self) -> str:
        """The name in the table."""
        return f"stage {self.stage}" if self.stage else "certify on demand"

    def start(self, *, at: int | None = None) -> Started:
        """Run it in a fork of this process, to be killed at operation ``at``."""
        return Started(self._run, Operations(Path.cwd(), at))

    def _run(self, operations: Operations) -> None:
        os.cpu_count = lambda: 1  # makes the order of operations deterministic
        graph.digest = lambda name: hashlib.sha256(name.encode()).hexdigest()
        checkpoint.save_file = operations.native(checkpoint.save_file)  # type: ignore[attr-defined]
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
    """The first digits, for small shards, as there is a kill at each write."""
    whole = listing(root, link)
    few = {key: getattr(whole, key)[:IMAGES] for key in ("idx", "labels", "held", "images")}
    return replace(whole, **few)


def _traced(*given: Any, **named: Any) -> onnx.ModelProto:
    """The ONNX graph of a network, traced only once, as it takes seconds and touches no file."""
    here = Path.cwd()
    kept = here.with_name(f"{here.name}-{os.environ['DVC_STAGE']}.onnx")
    if not kept.exists():
        onnx.save(trace(*given, **named), kept)
    return onnx.load(kept)


# A stage of every kind of dvc.yaml, and `rrcm certify`.
KINDS = (
    Kind("shard", ("shards/**/*",)),
    Kind("pretrain@tiny", ("pretrained/tiny/*",)),
    Kind(f"train@{RUN}", (f"models/{RUN}/*",)),
    Kind("denoise@tiny", ("denoisers/tiny/*",)),
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
    said: list[str] = field(default_factory=list)  # output of a restart after a loss

    @property
    def good(self) -> bool:
        """Whether nothing was lost, and nothing failed with a traceback."""
        return self.recovered == self.kills and not self.tracebacks


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the exit code is 1 if anything was lost."""
    parser = argparse.ArgumentParser(prog="kills", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkout", type=Path, help="one that is finished, to copy; else is made")
    parser.add_argument("--only", default="", help="kinds, with commas; and twice, devices")
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
    """Make a miniature checkout with all kinds of stages, and run `dvc repro` in it."""
    path.mkdir()
    made = workspace.create(path)
    made.edit(workspace.add)
    made.edit(shrink)
    made.run("rrcm", "data", "digits")
    made.repro()
    return made


def shrink(whole: dict[str, Any]) -> None:
    """Reduce sizes so that an operation occurs once or twice, not hundreds of times."""
    whole["data"] |= {"test": 10, "shard_size": 70}  # an image of each class; several shards
    whole["models"]["tiny"]["size"] = "16x1x2"
    whole["models"]["told"]["condition"] = 16  # dimensions of its representations
    whole["pretrain"]["tiny"]["steps"] = 3  # progress is saved at each
    for recipe in whole["recipes"].values():
        recipe |= {"epochs": 1, "batch_size": 600}  # two steps
    whole["denoisers"]["tiny"]["steps"] = 3
    whole["evals"] = {EVAL: whole["evals"][EVAL]}  # each adds a few files to the report


def warm() -> None:
    """Import what all runs need, without starting threads, and cache the parsed params.yaml."""
    import torch

    torch.set_num_threads(1)
    known = cache(schema.read_yaml)
    for module in (sections, params):  # which import it by name
        vars(module)["read_yaml"] = lambda path: deepcopy(known(path))
    for name in ("cli", *(f"pipeline.stages.{kind.stage}" for kind in KINDS if kind.stage)):
        import_module(name)


# Further rows, and the number of tries of each, as their outcome depends on chance.
TRIES = {f"twice {CERTIFY}": 6, "twice sample": 6}
SLOW = ("shard", "report", "purify", "combine", CERTIFY, "train", "export", "denoise")


def planned(given: argparse.Namespace) -> list[tuple[str, int]]:
    """(name of a row, most tries), the longest first."""
    most = dict.fromkeys((kind.stage or CERTIFY for kind in KINDS), EACH) | TRIES
    names = given.only.split(",") if given.only else [*most]
    names = [full for name in names for full in most if full == name or full.startswith(f"{name} ")]
    names.sort(key=lambda name: SLOW.index(name) if name in SLOW else len(SLOW))
    return [(name, min(most[name], given.kills or EACH)) for name in names]


def drill(task: tuple[Workspace, Path, str, int]) -> Row:
    """Make a line of the table, in a copy of a finished checkout."""
    made, path, name, most = task
    random.seed(name)
    checkout = made.copy(path)
    os.chdir(path)
    try:
        how, _, last = name.rpartition(" ")
        kind = next(kind for kind in KINDS if last in (kind.stage, kind.name))
        return (together if how else kills)(checkout, kind, most)
    finally:
        os.chdir(path.parent)
        shutil.rmtree(path)


def kills(checkout: Workspace, kind: Kind, most: int) -> Row:
    """Kill a run at each of its operations, or at ``most`` of them, choosing writes last."""
    found, whole = uninterrupted(checkout, kind)
    row = Row(kind.title, operations=len(found))
    order = sorted(range(len(found)), key=lambda i: (found[i] == "write", random.random()))
    for number, at in enumerate(sorted(i + 1 for i in order[:most])):
        clean(checkout, kind)
        if not kind.start(at=at).end().killed:
            continue  # saves depend on the clock: this run ended before the operation
        row.kills += 1
        if number % 2:
            remove(checkout, kind)
        judge(row, checkout, kind, whole, [kind.start().end()])
    return row


def together(checkout: Workspace, kind: Kind, most: int) -> Row:
    """Start two runs at nearly the same time; both must succeed."""
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
    """The operations and the outputs of a run without a kill, the second one.

    By then caches are filled, and the modules that it imports are imported here.
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
    """Count the outcomes of the last runs, from their outputs and messages."""
    traced = any("Traceback" in end.output for end in ends)
    same = digests(checkout, kind) == whole
    row.tracebacks += traced
    if same and not any(end.code for end in ends):
        row.recovered += 1
    if not same or traced or any(end.code for end in ends):
        row.said += [f"--- {row.what}", *(end.output for end in ends)]


def digests(checkout: Workspace, kind: Kind) -> dict[str, str]:
    """SHA-256 of all outputs; partial files that a kill left beside them are not included."""
    paths = [path for pattern in kind.outputs for path in sorted(checkout.path.glob(pattern))]
    files = [path for path in paths if path.is_file() and path.suffix != ".part"]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def remove(checkout: Workspace, kind: Kind) -> None:
    """Remove the outputs of a stage, as DVC does; those of `rrcm certify` stay."""
    for pattern in kind.outputs if kind.stage else ():
        shutil.rmtree(checkout.path / pattern.partition("/*")[0], ignore_errors=True)
        for path in checkout.path.glob(pattern):
            path.unlink(missing_ok=True)


def clean(checkout: Workspace, kind: Kind) -> None:
    """Remove all results, so that a run starts from the beginning."""
    remove(checkout, kind)
    for scratch in (".rrcm/resume", ".rrcm/votes", "results"):
        shutil.rmtree(checkout.path / scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
