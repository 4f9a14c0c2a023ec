"""The messages of DVC that this project reads because no file and no exit code has the same.

tests/workflow/test_stage_run.py compares each with the source of the installed DVC.
"""

import re
from typing import NamedTuple


class Message(NamedTuple):
    """A message: how a line of output with it looks, and the text of it in a module of DVC."""

    line: re.Pattern[str]
    module: str
    text: str


EXITED = Message(  # the exit code of a stage's command; DVC's own is 255 for every error
    re.compile(r"ERROR: .*failed to run: .*, exited with (-?\d+)"),
    "dvc.stage.exceptions",
    '", exited with {status}"',
)
UNKEPT = Message(  # DVC exits with 0, and dvc.lock has outputs that it could not cache
    re.compile(r"ERROR: failed to transfer .*"), "dvc_data.hashfile.transfer", "failed to transfer"
)
TORN = Message(  # read while another stage's DVC was writing it
    re.compile(r".*'\./dvc\.lock' validation failed.*"),
    "dvc.utils.strictyaml",
    "validation failed",
)
UNPUSHED = Message(  # of a `dvc push` that exits with 0
    re.compile(r"(?:WARNING: )?(Some of the cache files do not exist.*)"),
    "dvc.data_cloud",
    "Some of the cache files do not exist",
)
ALL = {"EXITED": EXITED, "UNKEPT": UNKEPT, "TORN": TORN, "UNPUSHED": UNPUSHED}
