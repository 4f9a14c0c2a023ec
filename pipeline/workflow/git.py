"""Runs git in this checkout."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from rrcm.core.errors import StageError


def run(*arguments: str) -> str:
    """Run git and return its output.

    Raises:
        StageError: git failed.
    """
    command, env = ["git", *arguments], os.environ | {"GIT_TERMINAL_PROMPT": "0"}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env
    )
    if done.returncode != 0:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise StageError(f"{Path.cwd()}: git {arguments[0]}: {reason}")
    return done.stdout.removesuffix("\n")


def attempt(*arguments: str) -> str | None:
    """The output of git, or None if it fails."""
    try:
        return run(*arguments)
    except StageError:
        return None


def unmerged() -> list[str]:
    """The files of this folder, and of those in it, that git could not merge."""
    names = attempt("diff", "--name-only", "--diff-filter=U", "--relative", "-z") or ""
    return sorted({*filter(None, names.split("\0"))})


def contents(name: str) -> bytes | None:
    """The bytes of a file by a name such as ``HEAD:./dvc.lock``; None if git has none of it."""
    command = ["git", "cat-file", "blob", name]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    return done.stdout if done.returncode == 0 else None


def versions(path: str, most: int) -> Iterator[bytes]:
    """The contents of a file as it is here, and in up to ``most`` commits, newest first."""
    if Path(path).is_file():
        yield Path(path).read_bytes()
    log = attempt("log", "--format=%H", f"--max-count={most}", "--", path) or ""
    for commit in log.split():
        if (content := contents(f"{commit}:./{path}")) is not None:
            yield content
