"""``rrcm repro``: `dvc repro`, protected from signals that would interrupt it while it writes.

With ``--jobs``, several stages run at a time, each by a `dvc repro` of its own.
"""

from collections.abc import Callable, Sequence

from pipeline.workflow import lockfile, parallel, plan, processes
from pipeline.workflow import pieces as split
from rrcm.core.ending import INTERRUPTED
from rrcm.core.errors import StageError

POLL = 0.2
ALLOW_MISSING = "--allow-missing"


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


def side_by_side(
    arguments: Sequence[str], *, jobs: int, pieces: int, say: Callable[[str], None]
) -> int:
    """Bring targets up to date, up to ``jobs`` stages at a time; return an exit code.

    A sampling is split into so many ``pieces``, which run side by side like stages. Of the options
    of `dvc repro`, ``--allow-missing`` may be among the arguments.

    Guarantee: as `reproduce`, for every stage that runs.

    Raises:
        ConfigError: params.yaml is not valid.
        StageError: Another option is among the arguments, or a target matches no stage.
    """
    options = {word for word in arguments if word.startswith("-")}
    if others := options - {ALLOW_MISSING}:
        raise StageError(
            f"{min(others)}: with --jobs or --pieces, only targets can follow, and {ALLOW_MISSING} "
            "of DVC's options"
        )
    targets = [word for word in arguments if word not in options]
    if restored := lockfile.restore():
        say(restored)
    stop = processes.Stop()
    with processes.signals(stop, say):
        stages = plan.load(targets, allow_missing=bool(options))
        nodes = split.expanded(stages, count=pieces)
        good = parallel.run(nodes, jobs=jobs, stop=stop, say=say)
    return INTERRUPTED if stop.is_set() else 0 if good else 1
