"""``rrcm repro``: `dvc repro`, out of reach of what ends it in the middle of its work."""

import os
import sys
from collections.abc import Callable, Sequence

from pipeline.ending import INTERRUPTED
from pipeline.flow import commands, lockfile, signals

SAVING = 3600.0  # seconds that DVC may take, once told to stop, to save what a stage has made
POLL = 0.2


def reproduce(arguments: Sequence[str], *, say: Callable[[str], None]) -> int:
    """Run `dvc repro` with these arguments; its exit code, or `INTERRUPTED`.

    Guarantee: Ctrl-C, SIGTERM and SIGHUP are for the stage at work, which ends and keeps what it
    saved; DVC, in a session of its own, takes down what was made and ends then. If this process
    dies, even of SIGKILL, so does all of that, and dvc.lock is the old one or the new one, whole. A
    dvc.lock that another DVC left cut is put together before.
    """
    if restored := lockfile.restore():
        say(restored)
    command = [sys.executable, "-m", "pipeline.flow.repro", "repro", *arguments]
    stop = signals.Stop()
    with signals.heeded(stop, say):
        environment = os.environ | {"PATH": commands.path(), "PYTHONUNBUFFERED": "1"}
        with commands.start(command, environment=environment, output=None, grace=SAVING) as process:
            while process.poll() is None:
                if stop.wait(POLL):
                    process.terminate()
                    process.wait()
    return INTERRUPTED if stop.is_set() else process.returncode
