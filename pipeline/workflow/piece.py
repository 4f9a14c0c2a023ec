"""Draws a piece of an evaluation: ``python -m pipeline.workflow.piece sample@NAME 3/8``.

It runs like a stage, but DVC does not know it: its votes are what the stage resumes from.
"""

import argparse
from functools import partial

from dvc.exceptions import DvcException
from dvc.repo import Repo

from pipeline import checked
from pipeline.runtime import graph
from pipeline.runtime.graph import SCRATCH
from pipeline.stages import sample
from pipeline.workflow import dvc_lock
from pipeline.workflow.pieces import GROUP, JOURNAL, VOTES
from rrcm.core.ending import reported
from rrcm.core.errors import StageError
from rrcm.core.locks import alone

NOTHING = "Stage '{}' didn't change, skipping"  # as DVC says it


def draw(stage: str, piece: str, *, forced: bool, pull: bool) -> None:
    """Draw the votes of piece i/k of a stage, resuming what was drawn of it before.

    Args:
        stage: Such as ``sample@tiny-rrcm-s050-e050``.
        piece: i/k.
        forced: Draw even if the votes of the stage are known.
        pull: Ask the remote, too, whether they are.

    Raises:
        StageError: The inputs changed meanwhile, or another process draws the same piece.
    """
    name = f"{stage}:{piece.replace('/', 'of')}"
    checked.load()
    if not forced and dvc_lock.consistent(partial(_known, stage, pull=pull)):
        print(NOTHING.format(name), flush=True)
        return
    before = graph.digest(stage)
    folder = SCRATCH / name / before[:16]
    with alone(SCRATCH / f"{name}.lock", name, say=partial(print, flush=True)):
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / VOTES).exists():
            sample.draw(
                stage.removeprefix(GROUP),
                journal=folder / JOURNAL,
                path=folder / VOTES,
                title=name,
                shard=piece,
            )
        if graph.digest(stage) != before:
            raise StageError(f"{name}: code, parameters or data changed while it ran; run it again")


def _known(stage: str, *, pull: bool) -> bool:
    """Whether DVC would restore the outputs of a stage instead of running it."""
    try:
        with Repo(".") as repo:
            (found,) = repo.stage.collect(stage)
            if pull:
                repo.stage_cache.pull(None)
            found.save_deps()
            repo.stage_cache.restore(found, pull=pull, dry=not pull)
    except DvcException:  # it is in no cache, or the remote does not answer
        return False
    return True


def main() -> None:
    """Draw the piece that the command line names."""
    options = argparse.ArgumentParser(description=draw.__doc__)
    options.add_argument("stage")
    options.add_argument("piece")
    options.add_argument("--force", action="store_true")
    options.add_argument("--pull", action="store_true")
    asked = options.parse_args()
    with reported():
        draw(asked.stage, asked.piece, forced=asked.force, pull=asked.pull)


if __name__ == "__main__":
    main()
