"""Shares of a sampling: ``python -m pipeline.workflow.splitting sample@NAME 3/8`` draws one.

Share i/k of an evaluation has the images i, i + k, i + 2k, …, as with ``rrcm certify --shard``. It
is drawn into a scratch folder of its own, which may come from another host (`moving`). The stage
then merges what is there into its journal, resumes, and draws what is missing: a share that was
lost, or is half done, costs time alone.

Guarantee: votes are those of the stage without shares, byte for byte, under the condition that
`drawing` states for restarts.
"""

import dataclasses
import glob
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pipeline.runtime import graph
from pipeline.runtime.graph import SCRATCH
from pipeline.workflow.plan import Node
from rrcm.certification.sampling.journal import Journal
from rrcm.certification.votes import records
from rrcm.core.ending import reported
from rrcm.core.locks import alone

GROUP = "sample@"
JOURNAL, VOTES = "votes.journal", "votes.jsonl"


def split(name: str) -> tuple[str, str]:
    """The stage of a node, and i/k if it is a share of it, else an empty string."""
    stage, _, share = name.partition(":")
    return stage, share.replace("of", "/")


def expanded(nodes: Sequence[Node], *, count: int) -> list[Node]:
    """The plan in which each evaluation that may have to be sampled first has ``count`` shares."""
    plan: list[Node] = []
    out: set[str] = set()  # stages that may have to run
    for node in nodes:
        if node.reason or node.forced or out & {*node.upstream}:
            out.add(node.name)
        if count > 1 and node.name in out and node.name.startswith(GROUP):
            shares = [f"{node.name}:{i}of{count}" for i in range(1, count + 1)]
            plan += [dataclasses.replace(node, name=share) for share in shares]
            node = dataclasses.replace(node, upstream=(*node.upstream, *shares))
        plan.append(node)
    return plan


def draw(stage: str, share: str) -> None:
    """Draw the votes of a share i/k of a stage, resuming what was drawn of it before.

    Raises:
        StageError: The inputs changed meanwhile, or another process draws the same share.
    """
    from pipeline.stages import sample  # imports torch, which whoever waits for shares needs not

    name = f"{stage}:{share.replace('/', 'of')}"
    say = partial(print, flush=True)
    with alone(SCRATCH / f"{name}.lock", name, say=say), graph.unchanged(stage) as before:
        folder = SCRATCH / name / before[:16]
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / VOTES).exists():
            journal, item = folder / JOURNAL, stage.removeprefix(GROUP)
            sample.draw(item, journal=journal, path=folder / VOTES, title=name, shard=share)


def drawn(stage: str) -> list[Path]:
    """The folders of what shares of a stage have drawn here."""
    return [path for path in SCRATCH.glob(f"{glob.escape(stage)}:*") if path.is_dir()]


def merge(stage: str, digest: str) -> None:
    """Put what shares of a stage have drawn into the journal that the stage resumes from.

    Raises:
        VotesError: Shares have votes of different functions, such as those of a GPU and a CPU.
    """
    scratch = SCRATCH / stage / digest[:16]
    paths = [f / digest[:16] / name for f in drawn(stage) for name in (VOTES, JOURNAL)]
    for path in filter(Path.is_file, paths):
        header, rows, _ = records.scan(path)
        scratch.mkdir(parents=True, exist_ok=True)
        with Journal(scratch / JOURNAL, dataclasses.replace(header, shard="1/1")) as journal:
            journal.complete({row.idx: row for row in rows}.values())


def clear(stage: str) -> None:
    """Remove what shares of a stage have drawn."""
    for folder in drawn(stage):
        shutil.rmtree(folder)


if __name__ == "__main__":
    with reported(stage=True):
        draw(*sys.argv[1:])
