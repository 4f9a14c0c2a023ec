"""``rrcm repro``: `dvc repro`, out of reach of what ends it in the middle of its work."""

from collections.abc import Callable, Sequence

from pipeline.flow import lockfile, processes
from rrcm.core.ending import INTERRUPTED

POLL = 0.2


def reproduce(arguments: Sequence[str], *, say: Callable[[str], None]) -> int:
    """Run `dvc repro` with these arguments; its exit code, or `INTERRUPTED`.

    Guarantee: Ctrl-C, SIGTERM and SIGHUP are for the stage at work, which ends and keeps what it
    saved; DVC, in a session of its own, records what was made and ends then. So it does if this
    process dies, even of SIGKILL. Only SIGKILL to DVC itself may cut dvc.lock; a file that was cut
    is put together before DVC starts.
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
