"""Reports the errors of commands and stages in one line and ends the process."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NoReturn

from rrcm.core.errors import RrcmError, one_line, printable

INTERRUPTED = 130  # exit code of a command that Ctrl-C ended
MEND, RETRY = 65, 75  # exit codes of a stage: whether a person must act (as in sysexits.h)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_THREAD = "can't start new thread"  # Python's own words
SAVES = "RRCM_SAVE_SECONDS"
UNLOADED = ("failed to map segment", "annot allocate memory")  # libraries, for lack of memory
LONGEST = 600  # characters of an error; file names and contents may have any length
HINTS = {
    **dict.fromkeys(FULL, "; make room and run the same command again, what was saved is kept"),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "; get the right to it, or work in a folder of your own",
    ),
    errno.ELOOP: "; a link leads back to itself, remove it",
    errno.ENAMETOOLONG: "; give it a shorter one",
}


def seconds_between_saves(usual: float) -> float:
    """Seconds of work that a kill may lose: RRCM_SAVE_SECONDS, else what is ``usual``."""
    return float(os.environ.get(SAVES, usual))


@contextmanager
def reported(*, stage: bool = False) -> Iterator[None]:
    """Turn expected errors of the block into one line on standard error and an exit code.

    An RrcmError, an OSError, lack of memory or of threads prints at most `LONGEST` characters and
    exits with code 1; a ``stage`` with `RETRY` if the same command may go on, else with `MEND`. An
    interrupt prints one line and exits with `INTERRUPTED`. If the reader of the output closes it,
    it exits with code 1 and prints nothing. Any other error is a bug and propagates. No other code
    catches errors for good.
    """
    try:
        yield
    except RrcmError as error:
        _end(error, stage=stage, retryable=error.retryable)
    except BrokenPipeError:
        _drop_output()
        sys.exit(1)
    except OSError as error:
        place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        if not place:
            _drop_output()
        told = f"{place}{error.strerror or error}{HINTS.get(error.errno or 0, '')}"
        _end(told, stage=stage, retryable=error.errno in FULL)
    except (MemoryError, ImportError) as error:
        if not _of_memory(error):
            raise
        detail = f" ({one_line(error)})" if str(error) else ""
        told = f"out of memory{detail}; ask for less at once, or use a larger machine"
        _end(told, stage=stage, retryable=False)
    except RuntimeError as error:
        if str(error) != NO_THREAD:
            raise
        _end(f"{error}: this system allows no more; see `ulimit -u`", stage=stage, retryable=True)
    except KeyboardInterrupt:
        print("interrupted; what was saved is kept, the same command goes on", file=sys.stderr)
        sys.exit(INTERRUPTED)


def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The `sys.excepthook` of a stage, which loads its libraries before it can be `reported`."""
    if not _of_memory(error):
        sys.__excepthook__(kind, error, trace)
        return
    with reported(stage=True):
        raise error


def _of_memory(error: BaseException) -> bool:
    unloaded = isinstance(error, ImportError) and any(word in str(error) for word in UNLOADED)
    return unloaded or isinstance(error, MemoryError)


def _end(error: BaseException | str, *, stage: bool, retryable: bool) -> NoReturn:
    told = f"error: {printable(one_line(error, most=LONGEST))}"
    if not stage:
        sys.exit(told)
    print(told, file=sys.stderr)
    sys.exit(RETRY if retryable else MEND)


def _drop_output() -> None:
    """Discard output that could not be written, which Python would try to write again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
