"""``rrcm repro``: `dvc repro`, protected from signals that would interrupt it while it writes."""

from collections.abc import Callable, Sequence

from pipeline.repro import lockfile, processes
from rrcm.core.ending import INTERRUPTED

POLL = 0.2


def reproduce(arguments: Sequence[str], *, say: Callable[[str], None]) -> int:
    """Run `dvc repro` with these arguments; return its exit code, or `INTERRUPTED`.

    Guarantee: Ctrl-C, SIGTERM and SIGHUP stop only the running stage, which keeps its saved state;
    DVC, in a session of its own, then records the outputs and ends. The same holds if this process
    dies, even by SIGKILL. Only SIGKILL to DVC itself may truncate dvc.lock; a truncated file is
    repaired before DVC starts.
    """
    if restored := lockfile.restore():
        say(restored)
    stop = processes.Stop()
    with processes.signals(stop, say):
        with lockfile.repro(arguments, output=None) as process:
            while process.poll() is None:
                if stop.wait(POLL):
                    process.terminate()
                    process.wait()
    return INTERRUPTED if stop.is_set() else process.returncode
