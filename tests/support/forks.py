"""``python forks.py`` is `dvc`, but stages are forks of it, so that they share what they import."""

import importlib
import os
import runpy
import sys
from multiprocessing import get_context
from typing import Any

from dvc.cli import main
from dvc.stage import run
from dvc.stage.exceptions import StageCmdFailedError


def forked(_shell: str, command: str, *, env: dict[str, str], cwd: str, **_: Any) -> None:
    """Run ``python -m pipeline.stages.<name>`` to its end."""
    module = command.split()[-1]
    importlib.import_module(module)
    del sys.modules[module]  # which is run anew
    child = get_context("fork").Process(target=stage, args=(module, env, cwd))
    child.start()
    child.join()
    if child.exitcode:
        raise StageCmdFailedError(command, child.exitcode)


def stage(module: str, env: dict[str, str], cwd: str) -> None:
    """As ``python -m`` does it."""
    os.chdir(cwd)
    os.environ.update(env)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run._run = forked
    sys.exit(main(sys.argv[1:]))
