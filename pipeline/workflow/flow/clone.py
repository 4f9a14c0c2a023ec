"""Git and DVC operations of a worker's checkout: switch commits, pull inputs, push results.

Git and DVC run as commands that end with this process. Nothing here loses work: a checkout with
edits is refused, and a push to an unreachable remote is retried.
"""

import fcntl
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from pipeline.workflow import dvc_says, git, lockfile, processes, remote
from pipeline.workflow.lockfile import RESULTS
from pipeline.workflow.processes import Say
from pipeline.workflow.stage_run import LOCKS
from rrcm.core.errors import StageError
from rrcm.core.files import write_text
from rrcm.core.schema import listed

REMOTE = "origin"
PAUSES = (2, 5, 15, 60, 180, 300)  # seconds between tries to push results that took hours
SHORT = 12  # digits of a commit in a message


def results_of(entry: Mapping[str, Any]) -> dict[str, str]:
    """The text, by path, of the outputs in git of the stage with this entry of dvc.lock."""
    mine = [path for path in map(Path, lockfile.hashes(entry)) if path.parts[0] in RESULTS]
    files = sorted(file for path in mine for file in (path, *path.rglob("*")) if file.is_file())
    return {file.as_posix(): file.read_text(encoding="utf-8") for file in files}


def put_results(entry: Mapping[str, Any], files: Mapping[str, str]) -> None:
    """Write the files that `results_of` returned elsewhere; outdated ones are removed."""
    for name in {*results_of(entry)} - {*files}:
        Path(name).unlink()
    for name, text in files.items():
        write_text(Path(name), text)


def edited() -> list[str]:
    """Tracked files with uncommitted changes, except for results, which are not lost."""
    status = ("status", "--porcelain", "-z", "--untracked-files=no", "--", ".")
    changed = git.run("--no-optional-locks", *status, *(f":!{name}" for name in RESULTS))
    return [entry[3:] for entry in changed.split("\0") if entry]


def pushed() -> str:
    """The full hash of HEAD, which every clone can fetch.

    Raises:
        StageError: Files were edited, or HEAD was not pushed.
    """
    if changed := edited():
        raise StageError(f"{listed(changed)}: edited; workers run a commit: commit and push it")
    commit = git.run("rev-parse", "HEAD")
    if not git.run("for-each-ref", "--contains", commit, "refs/remotes"):
        raise StageError(
            f"{commit[:SHORT]}: on no branch of {REMOTE}, so no worker can have it; push it"
        )
    return commit


@contextmanager
def at(commit: str, *, stop: Event, say: Say) -> Iterator[None]:
    """Keep this checkout at a commit during the block; an empty one stands for the current commit.

    Several blocks may share a commit. A block for another commit waits until all of them are done,
    and later blocks queue behind it. Switching replaces dvc.lock and metrics by those of the new
    commit: the previous results were already returned to the runs that asked for them. See
    `processes.take` for ``stop`` and ``say``.

    Raises:
        StageError: Files were edited, the commit cannot be fetched, or ``stop`` was set.
    """
    LOCKS.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        lock = stack.enter_context((LOCKS / "checkout.lock").open("ab"))
        turn = stack.enter_context((LOCKS / "checkout.turn").open("ab"))
        now = git.attempt("rev-parse", "HEAD") or "no commit"
        why = f"stages of this checkout at {now[:SHORT]}"
        take = partial(processes.take, stop=stop, why=why, say=say)
        take(turn.fileno())
        take(lock.fileno(), kind=fcntl.LOCK_SH)
        if commit:
            _clean()
        if commit and git.run("rev-parse", "HEAD") != commit:
            take(lock.fileno())
            _clean()  # no other block of ours uses the checkout now
            if git.attempt("cat-file", "-e", f"{commit}^{{commit}}") is None:
                git.run("fetch", "--quiet", "--tags", REMOTE)
            # --force: only results differ from HEAD here, and git would refuse to overwrite them.
            switch = ("checkout", "--quiet", "--force", "--detach", commit)
            git.run("-c", "core.hooksPath=/dev/null", *switch)
            take(lock.fileno(), kind=fcntl.LOCK_SH)
        turn.close()
        yield


def _clean() -> None:
    if changed := edited():
        raise StageError(
            f"{Path.cwd()}: {listed(changed)}: edited, so it is at no commit; a worker needs a "
            "clone of its own: commit, or `git restore`"
        )


def pull(paths: Sequence[str], *, stop: Event, say: Say) -> None:
    """Check out these outputs and data in the versions of dvc.lock and .dvc files; nothing else.

    Raises:
        StageError: They are neither here nor at the remote, or ``stop`` was set.
    """
    if not paths:
        return
    command = [sys.executable, "-m", remote.__name__, *paths]
    code, lines = processes.run(command, stop=stop, say=say)
    if code != 0:
        raise StageError((lines or ["pull: failed"])[-1].removeprefix("error: "))


def push(stage: str, *, stop: Event, say: Say) -> None:
    """Push a stage's outputs to the remote, with the run-cache entry that lets others restore them.

    A failed push is retried for some ten minutes. The outputs stay here in any case.

    Raises:
        StageError: The push failed, or ``stop`` was set.
    """
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "push", "--run-cache", stage]
    for pause in (*PAUSES, None):
        code, lines = processes.run(command, stop=stop, say=say)
        if code == 0:
            break
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        error = f"`dvc push --run-cache {stage}`: {(errors or lines or ['failed'])[-1]}"
        if pause is None:
            raise StageError(error)
        say(f"{error}; trying again in {pause} s")
        stop.wait(pause)
    if missing := [*filter(None, map(dvc_says.UNPUSHED.fullmatch, lines))]:
        raise StageError(f"`dvc push {stage}`: {missing[0][1]}")
