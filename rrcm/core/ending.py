"""How a command and a stage end when something is wrong: in one line."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rrcm.core.errors import RrcmError, one_line, printable

INTERRUPTED = 130  # exit code, as of any command that Ctrl-C ends
LONGEST = 600  # characters of an error: names and contents of files may have any length
HINTS = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
        "; make room and run the same command again, what was saved is kept",
    ),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "; get the right to it, or work in a folder of your own",
    ),
    errno.ELOOP: "; a link leads back to itself, remove it",
    errno.ENAMETOOLONG: "; give it a shorter one",
}


@contextmanager
def reported() -> Iterator[None]:
    """End the process as a command line does; the only place where errors are caught for good.

    An error of ours, of the file system or for want of memory takes one line on standard error of
    at most `LONGEST` characters, and exit code 1; an interrupt one line, and `INTERRUPTED`. Whoever
    reads the output may close it, without a word. Any other error is a bug, and goes through.
    """
    try:
        yield
    except RrcmError as error:
        sys.exit(f"error: {_told(error)}")
    except BrokenPipeError:
        _drop_output()
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            _drop_output()
        sys.exit(f"error: {_told(_of_files(error))}")
    except MemoryError as error:
        detail = f" ({one_line(error)})" if str(error) else ""
        sys.exit(f"error: out of memory{detail}; ask for less at once, or use a larger machine")
    except KeyboardInterrupt:
        print("interrupted; what was saved is kept, the same command goes on", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _told(error: BaseException | str) -> str:
    return printable(one_line(error, most=LONGEST))


def _of_files(error: OSError) -> str:
    """What the file system refused: which file, why, and what can be done."""
    place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    return f"{place}{error.strerror or error}{HINTS.get(error.errno or 0, '')}"


def _drop_output() -> None:
    """Forget what could not be written to standard output, which Python would try again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
