"""git, in this checkout."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from rrcm.errors import StageError


def run(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """What git prints, with more in its environment.

    Raises:
        StageError: It failed.
    """
    done = _call(arguments, environment or {})
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise StageError(f"{Path.cwd()}: git {arguments[0]}: {said}")
    return done.stdout.removesuffix("\n")


def attempt(*arguments: str) -> str | None:
    """What git prints, or None where it fails."""
    done = _call(arguments, {})
    return done.stdout.removesuffix("\n") if done.returncode == 0 else None


def _call(arguments: Sequence[str], more: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", **more}
    return subprocess.run(
        ["git", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
    )
