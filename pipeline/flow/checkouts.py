"""A checkout that works for others: at which commit it is, what it fetches, and what it gives away.

Git and DVC are called as commands, each of which ends with us. Nothing here loses work: a checkout
with edits is refused, a branch is never forced, and a remote that goes away is waited for.
"""

import fcntl
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import IO

from pipeline.flow import commands, git, results
from rrcm.errors import StageError

LOCK = Path(".rrcm/flow/checkout.lock")  # shared by who needs HEAD where it is
TURN = Path(".rrcm/flow/checkout.turn")  # so that who waits to move it is not overtaken for ever
REMOTE = "origin"
PAUSES = (2, 5, 15, 60, 180, 300)  # seconds between tries to push what took hours to make
NOBODY = {  # who commits where git was not told; a service seldom has a name
    **dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "rrcm"),
    **dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "rrcm@localhost"),
}
MISSING = "Some of the cache files do not exist"  # says `dvc push`, and ends well
POLL = 0.2
SHORT = 12  # digits of a commit in a message

Say = Callable[[str], None]


def edited() -> list[str]:
    """Files of git's that were changed here, but for those that stages write: no result is lost."""
    status = git.run("--no-optional-locks", "status", "--porcelain", "-z", "--untracked-files=no")
    names = [entry[3:] for entry in status.split("\0") if entry]
    ours = results.names() if names else set()
    return [name for name in names if name not in ours]


def asked(commit: str = "") -> str:
    """The full name of a commit that every clone can have; without one, of what HEAD is here.

    ``commit`` is whatever git understands, such as ``origin/main``, which is fetched first.

    Raises:
        StageError: There is none, it was not pushed, or HEAD is meant and files were edited.
    """
    if commit:
        fetch()
    elif changed := edited():
        raise StageError(f"{_some(changed)}: edited; workers run a commit: commit and push it")
    name = commit or "HEAD"
    found = git.attempt("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if found is None:
        raise StageError(f"{name}: git knows no such commit, here or at {REMOTE}")
    places = ("for-each-ref", "--contains", found, "refs/remotes", "refs/tags")
    if not git.run(*places):
        fetch()
        if not git.run(*places):
            raise StageError(
                f"{found[:SHORT]}: on no branch of {REMOTE}, so no worker can have it; push it"
            )
    return found


def fetch() -> None:
    """Get what is new at the remote.

    Raises:
        StageError: It does not answer.
    """
    git.run("fetch", "--quiet", "--tags", REMOTE)


@contextmanager
def at(commit: str, *, stop: Event, say: Say) -> Iterator[None]:
    """Keep this checkout at a commit during the block; an empty one is what it is at.

    Several may do so at once. Who needs another commit waits until all of them are done, and who
    comes later waits behind. Then dvc.lock and metrics are those of the new commit: what they said
    before, those who asked for it have.

    Args:
        commit: Its full name, or an empty string.
        stop: Set, it ends waiting.
        say: Told what is waited for.

    Raises:
        StageError: Files were edited, the commit cannot be had, or ``stop`` was set.
    """
    with _open(LOCK) as lock:
        with _open(TURN) as turn:
            _take(turn, fcntl.LOCK_EX, stop=stop, say=say)
            _take(lock, fcntl.LOCK_SH, stop=stop, say=say)
            if commit:
                _clean()
            if commit and _head() != commit:
                _take(lock, fcntl.LOCK_EX, stop=stop, say=say)
                _switch(commit)
                _take(lock, fcntl.LOCK_SH, stop=stop, say=say)
        yield


def _open(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab")


def _take(file: IO[bytes], kind: int, *, stop: Event, say: Say) -> None:
    told = False
    while True:
        try:
            return fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                say(f"waiting for stages of this checkout at {_head()[:SHORT]}")
                told = True
        if stop.wait(POLL):
            raise StageError("stopped while it waited for its commit")


def _clean() -> None:
    if changed := edited():
        raise StageError(
            f"{Path.cwd()}: {_some(changed)}: edited, so it is at no commit; a worker needs a "
            "clone of its own: commit, or `git restore`"
        )


def _switch(commit: str) -> None:
    _clean()  # nobody else of ours is here now
    if git.attempt("cat-file", "-e", f"{commit}^{{commit}}") is None:
        fetch()
    # What git would overwrite are results, which it compares with another version of them.
    git.run("-c", "core.hooksPath=/dev/null", "checkout", "--quiet", "--force", "--detach", commit)


def _head() -> str:
    return git.run("rev-parse", "HEAD")


def pull(paths: Sequence[str], *, stop: Event, say: Say) -> None:
    """Have these outputs of stages, and these data, as dvc.lock and .dvc files say; nothing else.

    Raises:
        StageError: They are neither here nor at the remote, or ``stop`` was set.
    """
    if paths:
        _dvc("pull", *paths, stop=stop, say=say)


def push(stage: str, *, stop: Event, say: Say) -> None:
    """Give a stage's outputs to the remote, with the entry by which other checkouts know its run.

    While the remote does not take them, it is tried again for some ten minutes. They stay here.

    Raises:
        StageError: The remote did not take them, or ``stop`` was set.
    """
    for pause in (*PAUSES, None):
        try:
            lines = _dvc("push", "--run-cache", stage, stop=stop, say=say)
            break
        except StageError as error:
            if pause is None or stop.is_set():
                raise
            say(f"{error}; trying again in {pause} s")
            stop.wait(pause)
    if missing := [line.removeprefix("WARNING: ") for line in lines if MISSING in line]:
        raise StageError(f"`dvc push {stage}`: {missing[0]}")


def _dvc(verb: str, *arguments: str, stop: Event, say: Say) -> list[str]:
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", verb, *arguments]
    code, lines = commands.run(command, environment=os.environ, stop=stop, say=say)
    if stop.is_set():
        raise StageError(f"stopped during `dvc {verb}`")
    if code != 0:
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        raise StageError(
            f"`dvc {verb} {' '.join(arguments)}`: {(errors or lines or ['failed'])[-1]}"
        )
    return lines


def publish(branch: str, *, message: str) -> str:
    """Commit dvc.lock and metrics, as they are here, to a branch of the remote; what was done.

    HEAD, its branch and git's index stay as they are. The new commit comes after HEAD, and after
    what the branch has beyond it, which may be results only: code that HEAD does not know would be
    undone.

    Raises:
        StageError: The branch has such commits, or the remote did not take it; the commit is then
            kept, and named.
    """
    fetch()
    head, tip = (
        _head(),
        git.attempt("rev-parse", "--verify", "--quiet", f"refs/remotes/{REMOTE}/{branch}"),
    )
    parents = [head]
    if tip is not None and git.attempt("merge-base", "--is-ancestor", tip, head) is None:
        base = git.attempt("merge-base", tip, head) or head
        newer = {*git.run("diff", "--name-only", "-z", base, tip).split("\0")} - {""}
        if code := sorted(newer - results.names()):
            raise StageError(
                f"{REMOTE}/{branch}: has changes of {_some(code)} that this run does not know; "
                "results stay in dvc.lock here; run that branch, or publish to another"
            )
        parents = [tip] if base == head else [tip, head]
    tree = _tree(head)
    if tree == git.run("rev-parse", f"{parents[0]}^{{tree}}"):
        return f"{REMOTE}/{branch} has these results"
    author = {} if git.attempt("config", "user.email") else NOBODY
    commit = git.run(
        "commit-tree", tree, *(f"-p{one}" for one in parents), "-m", message, environment=author
    )
    git.run("update-ref", f"refs/rrcm/{branch}", commit)  # so that nothing collects it
    if git.attempt("push", "--quiet", REMOTE, f"{commit}:refs/heads/{branch}") is None:
        raise StageError(
            f"{REMOTE}/{branch}: did not take the results, perhaps because somebody pushed first; "
            f"they are commit {commit[:SHORT]} here, and published again with the next run"
        )
    return f"{REMOTE}/{branch} is {commit[:SHORT]}"


def _tree(head: str) -> str:
    """Of HEAD with the results of this checkout: made in an index of its own."""
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder, "index"))}
        git.run("read-tree", head, environment=index)
        for name in sorted(results.names()):
            change = ["--add", name] if Path(name).exists() else ["--force-remove", name]
            git.run("update-index", *change, environment=index)
        return git.run("write-tree", environment=index)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
