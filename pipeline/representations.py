"""``rrcm representations``: what the encoders of params.yaml know, side by side."""

from pathlib import Path

from rrcm import params
from rrcm.analysis import representations, results
from rrcm.config import require


def run(*, out: Path) -> str:
    """The linear probes and distances of all that params.yaml represents; returns the table.

    The table, the numbers and a figure of the probes go to ``out``.

    Raises:
        ConfigError: params.yaml represents nothing.
        DataError: Something has not been represented here, or is damaged.
    """
    whole = params.load()
    require(
        whole.representations != {},
        "params.yaml: representations is empty; docs/representations.md says what it may name",
    )
    found = representations.read(Path("represented"), [*whole.representations])
    numbers = representations.numbers(found, confidence=whole.report.confidence)
    return results.write(
        out,
        representations.table(numbers),
        numbers,
        representations.probes(numbers),
        table="representations",
        plot="probe",
        note=representations.note(numbers, confidence=whole.report.confidence),
    )
