"""Every error that a user can fix, by name. Anything else is a bug and should crash loudly.

RrcmError
├── ConfigError       params.yaml says something that we do not understand
├── DataError         the data on disk is not what the configuration promises
├── CheckpointError   a trained model is missing, damaged or of another architecture
├── TrainingError     training went wrong in a way that another setting can cure
├── BackendError      a runtime refused an exported model, or disagrees with it
├── VotesError        a votes file is damaged, or belongs to another classifier
├── CertificateError  a certificate was asked outside the conditions of its theorem
└── StageError        a pipeline stage cannot start, or its inputs changed under it
"""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

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


class RrcmError(Exception):
    """Base of the family; the command line prints these in one line and exits 1."""


class ConfigError(RrcmError):
    """``params.yaml`` says something that we do not understand."""


class DataError(RrcmError):
    """The data on disk is not what the configuration promises."""


class CheckpointError(RrcmError):
    """A trained model is missing, damaged or of another architecture."""


class TrainingError(RrcmError):
    """Training went wrong in a way that another setting can cure."""


class BackendError(RrcmError):
    """A runtime refused an exported model, or disagrees with it."""


class VotesError(RrcmError):
    """A votes file is damaged, or belongs to another classifier."""


class CertificateError(RrcmError):
    """A certificate was asked outside the conditions of its theorem."""


class StageError(RrcmError):
    """A pipeline stage cannot start, or its inputs changed while it ran."""


def printable(text: str, *, lines: bool = False) -> str:
    """``text`` as it may be shown to people, whoever wrote it: escaped where unseen.

    Escaped as Python does are control characters, which a terminal would obey, line ends among them
    unless ``lines``, marks that turn the direction of writing, and bytes that are no UTF-8.
    """
    if lines:
        return "\n".join(map(printable, text.split("\n")))
    return text if text.isprintable() else "".join(c if c.isprintable() else _said(c) for c in text)


def _said(character: str) -> str:
    return repr(character)[1:-1]


def one_line(error: BaseException | str, *, most: int = 300) -> str:
    """What an error of anybody says, in one line of at most so many characters.

    What is cut out is in the middle: a place stands at the beginning, and what to do at the end.
    """
    text = str(error)
    if len(text) > 2 * most:  # before it is split: it may be the contents of a file
        text = text[:most] + text[-most:]
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end - 3]} … {text[-end:]}"


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
    return f"{place}{error.strerror or error}{HINTS.get(error.errno, '')}"


def _drop_output() -> None:
    """Forget what could not be written to standard output, which Python would try again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
