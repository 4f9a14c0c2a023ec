"""``python forks.py`` is `dvc`, but stages are forks of it, so that they share what they import."""

import importlib
import os
import runpy
import sys
from typing import Any

from dvc.cli import main
from dvc.stage import run
from dvc.stage.exceptions import StageCmdFailedError


def forked(_shell: str, command: str, *, env: dict[str, str], cwd: str, **_: Any) -> None:
    """Run ``python -m pipeline.stages.<name>`` to its end."""
    module = command.split()[-1]
    importlib.import_module(module)
    del sys.modules[module]  # which is run anew
    if not (child := os.fork()):
        os.chdir(cwd)
        os.environ.update(env)
        code = 1
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as ended:
            print(ended.code or "", file=sys.stderr)
            code = int(bool(ended.code))
        finally:
            sys.stdout.flush()
            os._exit(code)
    if status := os.waitpid(child, 0)[1]:
        raise StageCmdFailedError(command, status)


if __name__ == "__main__":
    run._run = forked
    sys.exit(main(sys.argv[1:]))
