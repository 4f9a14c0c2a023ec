"""``rrcm log``: sends what trainings have written to TensorBoard, MLflow or Weights & Biases."""

import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from pipeline.tracking import interface, trainings
from pipeline.tracking.sending import Sender
from pipeline.workflow import running
from rrcm.cli import checked
from rrcm.core.errors import DataError, StageError, one_line
from rrcm.core.registry import suggest
from rrcm.core.schema import listed

POLL = 2.0  # seconds
QUIET = 30.0  # seconds without a stage after which nothing is followed; DVC rests between two
NAMES = 200  # characters of names in an error


def log(
    sink: str, *, to: str | None, only: Sequence[str], follow: bool, say: Callable[[str], None]
) -> str:
    """Send the finished trainings, and then, if ``follow``, those that run until none does.

    Args:
        sink: Name of a file of pipeline/tracking/sinks/.
        to: Folder or address; None: that of the sink.
        only: Patterns of trainings, by name or stage; none: all.
        follow: Go on while a stage of this checkout runs.
        say: Called with a line for each training.

    Returns:
        Where the trainings are now, and how to look at them.

    Raises:
        ConfigError: There is no such sink, or ``to`` is not for it.
        ModuleNotFoundError: Its package is not installed.
        StageError: There is no training, or none that a pattern matches.
        DataError: A file is damaged, or the sink takes nothing.
    """
    opened, refusals = interface.load(sink)
    wanted = _wanted(only, follow=follow)
    try:
        place = opened(to)
        with Sender(place, wanted, say).closing() as sender:
            sender.finished(_running() if follow else ())
            if follow:
                _follow(sender, say)
    except refusals as error:
        raise DataError(f"rrcm log {sink}: {one_line(error)}") from None
    return f"{place.place}: {place.shown}"


def _wanted(only: Sequence[str], *, follow: bool) -> Callable[[str], bool]:
    """Whether a stage matches one of the patterns, each of which matches something.

    Raises:
        StageError: One does not, or there is nothing to match.
    """
    known = [one.stage for one in trainings.finished()]
    if follow:
        known += [stage for stage in _declared() if stage not in known]
    if not known:
        folders = ", ".join(f"{folder}/" for folder in trainings.FOLDERS.values())
        raise StageError(
            f"no training has written anything here: {folders} have no log.csv; `dvc repro` makes "
            "them, and --follow sends what a training saves while it runs"
        )

    def matches(stage: str, pattern: str) -> bool:
        return fnmatchcase(stage, pattern) or fnmatchcase(stage.partition("@")[2], pattern)

    for pattern in only:
        if not any(matches(stage, pattern) for stage in known):
            names = [stage.partition("@")[2] for stage in known]
            raise StageError(
                f"--only {pattern}: no training here has such a name, only "
                f"{listed(names, most=NAMES)}.{suggest(pattern, names)}"
            )
    return lambda stage: not only or any(matches(stage, pattern) for pattern in only)


def _declared() -> list[str]:
    whole = checked.load()
    sections = {"pretrain": whole.pretrain, "train": whole.runs, "denoise": whole.denoisers}
    return [f"{kind}@{name}" for kind, entries in sections.items() for name in entries]


def _running() -> list[str]:
    return [one.name for one in running.stages(checked.load())]


def _follow(sender: Sender, say: Callable[[str], None]) -> None:
    """Send what trainings save until no stage has run for `QUIET`, or none runs at first."""
    last = time.monotonic()
    if not _running():
        say("no stage runs now; --follow ends")
        return
    while time.monotonic() - last < QUIET:
        now = _running()
        last = time.monotonic() if now else last
        of_trainings = [name for name in now if name.partition("@")[0] in trainings.FOLDERS]
        sender.finished(of_trainings)  # first: a stage that ended since has its outputs here
        sender.running(of_trainings)
        time.sleep(POLL)
    sender.finished(again=True)
