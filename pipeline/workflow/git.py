"""Runs git in this checkout."""

import os
import subprocess
from pathlib import Path

from rrcm.core.errors import StageError


def run(*arguments: str) -> str:
    """Run git and return its output.

    Raises:
        StageError: git failed.
    """
    done = subprocess.run(
        ["git", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=os.environ | {"GIT_TERMINAL_PROMPT": "0"},
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


class Blobs:
    """Reads blobs of git by name, all from one `git cat-file` process."""

    def __enter__(self) -> "Blobs":
        """Start the process."""
        command = ["git", "cat-file", "--batch"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._known: dict[str, bytes] = {}
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._process.communicate()

    def __getitem__(self, name: str) -> bytes:
        """The bytes of a blob.

        Raises:
            StageError: git does not have it.
        """
        if name not in self._known:
            asked, answers = self._process.stdin, self._process.stdout
            asked.write(f"{name}\n".encode())
            asked.flush()
            header = answers.readline().split()
            if len(header) != 3:
                raise StageError(f"{Path.cwd()}: git has no object {name}; `git fsck` says more")
            self._known[name] = answers.read(int(header[2]) + 1)[:-1]
        return self._known[name]
