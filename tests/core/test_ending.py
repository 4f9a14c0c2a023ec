"""How commands and stages end: one line, and for a stage a code that says who can help."""

import errno
import subprocess
import sys

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
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), MEND),
        (RuntimeError("can't start new thread"), RETRY),
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


@pytest.mark.parametrize("bug", [ZeroDivisionError(), RuntimeError(), ImportError("no x")])
def test_a_bug_is_not_caught(bug: Exception):
    with pytest.raises(type(bug)), reported(stage=True):
        raise bug


def test_memory_that_ends_while_a_stage_loads_its_libraries_takes_one_line():
    """A library may be told by ImportError; a real one would also print a warning or end itself."""
    code = "import sys; from rrcm.core.ending import hook; sys.excepthook = hook; raise "
    for error, code_of_exit, lines in (
        ("ImportError('libx.so: failed to map segment from shared object')", MEND, 1),
        ("MemoryError()", MEND, 1),
        ("ImportError('no name x')", 1, 3),
    ):
        done = subprocess.run([sys.executable, "-c", code + error], capture_output=True, text=True)
        assert (done.returncode, done.stderr.count("\n")) == (code_of_exit, lines), done.stderr
        assert done.stderr.startswith("error: out of memory") == (lines == 1)
