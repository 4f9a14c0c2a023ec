"""``python -m pipeline.workflow.careful_dvc``: `dvc`, but outputs in git stay until replaced.

DVC removes the outputs of a stage before it runs it. Those in git, the metrics, the stage itself
replaces file by file, and removes those that are left over. So whatever fails or is killed, each
file is whole: as it was, or as it will be.
"""

import sys
from typing import Any

from dvc.cli import main
from dvc.output import Output

_remove, _checkout = Output.remove, Output.checkout
_kept: set[str] = set()


def remove(out: Output, *arguments: Any, **more: Any) -> None:
    """Remove an output before its stage runs, unless it is in git."""
    if out.use_cache:
        _remove(out, *arguments, **more)
    else:
        _kept.add(out.fs_path)


def checkout(out: Output, *arguments: Any, force: bool = False, **more: Any) -> Any:
    """Check out an output; one that would have been removed is replaced without a question."""
    return _checkout(out, *arguments, force=force or out.fs_path in _kept, **more)


if __name__ == "__main__":
    Output.remove, Output.checkout = remove, checkout
    sys.exit(main(sys.argv[1:]))
