"""The messages of DVC that this project reads because no file and no exit code has the same.

Each is a pattern of a line of output; tests/workflow/test_stage_run.py compares them with the
source of the installed DVC.
"""

import re

# The exit code of a stage's command; DVC's own is 255 for every error.
EXITED = re.compile(r"ERROR: .*failed to run: .*, exited with (-?\d+)")
# DVC exits with 0, and dvc.lock has outputs that it could not cache.
UNKEPT = re.compile(r"ERROR: failed to transfer .*")
# Of a `dvc push` that exits with 0.
UNPUSHED = re.compile(r"(?:WARNING: )?(Some of the cache files do not exist.*)")
