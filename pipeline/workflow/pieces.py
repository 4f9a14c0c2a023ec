"""Splits the sampling of an evaluation into pieces, which processes and hosts draw side by side.

Piece i/k has the images i, i + k, i + 2k, … (`piece` draws it, into a scratch folder of its own).
The stage then resumes from what the pieces have drawn, and draws what is missing: a piece that was
lost, or is half done, costs time alone.

Guarantee: votes are those of the stage without pieces, byte for byte, under the condition that
`procedure` states for restarts.
"""

import dataclasses
import glob
import shutil
from collections.abc import Sequence
from pathlib import Path

from pipeline.runtime.graph import SCRATCH
from pipeline.workflow.plan import Node
from rrcm.certification.sampling.journal import Journal
from rrcm.certification.votes import records

GROUP = "sample@"
JOURNAL, VOTES = "votes.journal", "votes.jsonl"


def split(name: str) -> tuple[str, str]:
    """The stage of a node, and i/k if it is a piece of it, else an empty string."""
    stage, _, piece = name.partition(":")
    return stage, piece.replace("of", "/")


def expanded(nodes: Sequence[Node], *, count: int) -> list[Node]:
    """The plan in which each evaluation that may have to be sampled first has ``count`` pieces."""
    found: list[Node] = []
    out: set[str] = set()  # stages that may have to run
    for node in nodes:
        if node.changed or node.forced or out & {*node.upstream}:
            out.add(node.name)
        if count > 1 and node.name in out and node.name.startswith(GROUP):
            pieces = [f"{node.name}:{i}of{count}" for i in range(1, count + 1)]
            found += [dataclasses.replace(node, name=one, outputs=()) for one in pieces]
            node = dataclasses.replace(node, upstream=(*node.upstream, *pieces))
        found.append(node)
    return found


def drawn(stage: str) -> bool:
    """Whether there is anything here that pieces of a stage have drawn."""
    return bool(_folders(stage))


def gather(stage: str, digest: str) -> None:
    """Put what pieces of a stage have drawn into the journal that the stage resumes from.

    Raises:
        VotesError: Pieces have votes of different functions, such as those of a GPU and a CPU.
    """
    scratch = SCRATCH / stage / digest[:16]
    found = [folder / digest[:16] for folder in _folders(stage)]
    paths = [folder / name for folder in found for name in (VOTES, JOURNAL)]
    for path in filter(Path.is_file, paths):
        header, rows, _ = records.scan(path)
        scratch.mkdir(parents=True, exist_ok=True)
        with Journal(scratch / JOURNAL, dataclasses.replace(header, shard="1/1")) as journal:
            journal.complete({row.idx: row for row in rows}.values())


def clear(stage: str) -> None:
    """Remove what pieces of a stage have drawn."""
    for folder in _folders(stage):
        shutil.rmtree(folder)


def _folders(stage: str) -> list[Path]:
    return [path for path in SCRATCH.glob(f"{glob.escape(stage)}:*") if path.is_dir()]
