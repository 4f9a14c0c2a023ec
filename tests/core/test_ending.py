"""How commands and stages end: one line, and for a stage a code that says who can help."""

import errno

import pytest

from rrcm.core.ending import MEND, RETRY, reported
from rrcm.core.errors import RrcmError, StageError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RrcmError("params.yaml: no"), MEND),
        (StageError("a: process 7 is at the same work", retryable=True), RETRY),
        (OSError(errno.ENOSPC, "No space left on device", "file"), RETRY),
        (OSError(errno.EACCES, "Permission denied", "file"), MEND),
        (MemoryError(), MEND),
    ],
    ids=repr,
)
def test_a_stage_says_by_its_code_whether_a_retry_may_help(error: Exception, code: int, capsys):
    with pytest.raises(SystemExit) as ended, reported(stage=True):
        raise error
    line = capsys.readouterr().err

    assert ended.value.code == code
    assert line.startswith("error: ") and line.count("\n") == 1
    with pytest.raises(SystemExit) as ended, reported():  # a command prints it as it exits, with 1
        raise error
    assert ended.value.code == line.removesuffix("\n")


def test_a_bug_is_not_caught():
    with pytest.raises(ZeroDivisionError), reported(stage=True):
        raise ZeroDivisionError
