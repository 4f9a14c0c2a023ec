"""The overhead of a flow with nothing to run, beside `dvc repro`: ``python -m benchmarks.flow``.

It needs a checkout that is up to date, without a running `rrcm flow up`.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen

REPEATS = 3
BIN = Path(sys.executable).parent
COMMANDS = (("rrcm", "--help"), ("dvc", "repro"), ("rrcm", "flow", "run"))


def main() -> None:
    for command in COMMANDS:
        report(" ".join(command), [seconds(command) for _ in range(REPEATS)])
    report("rrcm flow up, until its address", [until_up() for _ in range(REPEATS)])


def report(what: str, taken: list[float]) -> None:
    """Print one line with the median, lowest and highest time."""
    low, middle, high = min(taken), statistics.median(taken), max(taken)
    print(f"{what:32} {middle:6.2f} s ({low:.2f} - {high:.2f})", flush=True)


def seconds(command: tuple[str, ...]) -> float:
    """The time that a command takes."""
    began = time.monotonic()
    subprocess.run([BIN / command[0], *command[1:]], check=True, capture_output=True)
    return time.monotonic() - began


def until_up() -> float:
    """The time until a server prints its address; it is then stopped."""
    began = time.monotonic()
    command = [BIN / "rrcm", "flow", "up", "--port", "0"]
    with Popen(command, stdout=PIPE, stderr=STDOUT, text=True) as process:
        try:
            if not any("shows runs" in line for line in process.stdout or ()):
                sys.exit("`rrcm flow up` ended before its time")
            return time.monotonic() - began
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
