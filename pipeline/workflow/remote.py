"""Pulls outputs from a DVC remote; a failure becomes an error of one line with the way out.

``python -m pipeline.workflow.remote PATH…`` does it in a process that can be stopped.
"""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dvc.config import NoRemoteError, RemoteNotFoundError
from dvc.exceptions import CheckoutError, ConfirmRemoveError, DvcException
from dvc.repo import Repo

from pipeline.workflow import lockfile
from rrcm.core.ending import reported
from rrcm.core.errors import ConfigError, DataError, RrcmError, one_line

PUSH = "`dvc push` from the checkout that made it"
OBJECTS = "/files/md5"  # the folder of a remote where DVC keeps files by their hash
AGAIN = "files that arrived are kept, and the same command resumes"


class Missing(DataError):
    """``place``, a remote, lacks ``files``, or a part of them; all others arrived."""

    def __init__(self, files: list[str], place: str, way: str) -> None:
        super().__init__(f"{', '.join(files)}: missing or incomplete in {place}; {way}")
        self.files, self.place = files, place


def pull(outputs: Mapping[str, str], remote: str | None, *, whatever: bool = False) -> str:
    """Have DVC pull ``outputs``, with its progress bars; return a summary.

    With ``whatever``, all that the remote has, and it is no error if that is not everything.

    Raises:
        ConfigError: There is no such remote.
        DataError: DVC failed.
        StageError: It locks in another way than this project.
    """
    place = f"the remote {remote}" if remote else "the default remote"
    targets = None if whatever else [*outputs]  # DVC takes a third of a second for each
    lockfile.require_lock()
    with _collected() as errors:
        try:
            with Repo(".", _wait_for_lock=True) as repo:
                default = repo.config["core"].get("remote")
                done = repo.pull(targets=targets, remote=remote, allow_missing=whatever)
        except RemoteNotFoundError:
            raise ConfigError(
                f"--remote {remote}: no such remote; `dvc remote list` shows them"
            ) from None
        except (NoRemoteError, CheckoutError) as error:
            missing = [os.path.relpath(str(one)) for one in getattr(error, "target_infos", outputs)]
            if remote or default:
                raise Missing(missing, place, PUSH) from None
            raise DataError(
                f"{', '.join(missing)}: not in the cache, and this checkout has no default remote; "
                "add one with `dvc remote add --default NAME URL`, or name one with --remote"
            ) from None
        except ConfirmRemoveError as error:
            raise DataError(
                f"{one_line(error)} It was edited here; `dvc pull --force` replaces it"
            ) from None
        except DvcException as error:
            raise _failed(errors, outputs, error) from None
    counts = done["stats"]
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "all is here"


def _failed(
    records: list[logging.LogRecord], outputs: Mapping[str, str], error: Exception
) -> RrcmError:
    """The error of a pull: what DVC logged of files, or of the remote, else its own."""
    names = {md5: path for path, md5 in outputs.items()}
    causes = [(record.args, record.exc_info[1]) for record in records if record.exc_info]
    for args, cause in causes:
        if isinstance(args, tuple) and len(args) == 2:  # protocol, path: no connection
            url = f"{args[0]}://{str(args[1]).removesuffix(OBJECTS)}"
            return DataError(f"the remote {url} cannot be reached: {one_line(cause or error)}")
    files = sorted({names.get(str(args[0]), str(args[0])) for args, _ in causes if args})
    cause = causes[0][1] if causes else None
    why = getattr(cause, "strerror", None) or one_line(cause or error)
    return DataError(f"{', '.join(files) or 'dvc pull'}: {why}; {AGAIN}", retryable=True)


@contextmanager
def _collected() -> Iterator[list[logging.LogRecord]]:
    """What DVC logs of errors during the block, and would show beside ours."""
    records: list[logging.LogRecord] = []
    collector = logging.Handler(logging.ERROR)
    collector.emit = records.append
    loggers = [logging.getLogger(name) for name in ("dvc", "dvc_data", "dvc_objects")]
    before = [logger.handlers for logger in loggers]
    for logger in loggers:
        logger.handlers = [collector]
    try:
        yield records
    finally:
        for logger, handlers in zip(loggers, before, strict=True):
            logger.handlers = handlers


if __name__ == "__main__":
    with reported():
        pull(dict.fromkeys(sys.argv[1:], ""), None)
