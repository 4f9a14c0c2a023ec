"""``rrcm``, or ``python -m rrcm``."""

import os
import signal
from types import FrameType

from rrcm.core.ending import INTERRUPTED, reported


def main() -> None:
    """Run a command; an error that the user can fix takes one line and exit code 1."""
    end_imports_quietly()
    with reported():
        from rrcm.cli.main import main as run

        run()


def end_imports_quietly() -> None:
    """Have Ctrl-C end this process at once, with exit code 130, while a module is imported.

    A KeyboardInterrupt would be a traceback, or be caught by that module, which is then broken.
    Nothing is lost: what is saved is whole at any time. Where Ctrl-C is ignored, it stays so.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    outer = frame
    while outer is not None:
        if outer.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(INTERRUPTED)
        outer = outer.f_back
    signal.default_int_handler(number, frame)


if __name__ == "__main__":
    main()
