"""``rrcm representations``: what the encoders of params.yaml know, side by side."""

from pathlib import Path

from pipeline.differences import lines
from pipeline.stale import Present
from rrcm.analysis import representations, results
from rrcm.config import require


def run(*, out: Path) -> str:
    """The linear probes and distances of all that params.yaml represents; returns the table.

    The table, the numbers and a figure of the probes go to ``out``.

    Raises:
        ConfigError: params.yaml represents nothing.
        DataError: Something has not been represented here, or is damaged.
    """
    present = Present()
    whole = present.whole
    require(
        whole.representations != {},
        "params.yaml: representations is empty; docs/representations.md says what it may name",
    )
    found = representations.read(Path("represented"), [*whole.representations])
    changed = {name: present.file(Path(f"represented/{name}/probe.csv")) for name in found}
    marked = {f"{name} (stale)" if changed[name] else name: one for name, one in found.items()}
    numbers = representations.numbers(marked, confidence=whole.report.confidence)
    said = lines([(name, reasons or ()) for name, reasons in changed.items()], stage="represent")
    if unknown := [name for name, reasons in changed.items() if reasons is None]:
        said.append(f"dvc.lock does not say what made these: {', '.join(unknown)}")
    note = representations.note(numbers, confidence=whole.report.confidence)
    return results.write(
        out,
        representations.table(numbers),
        numbers,
        representations.probes(numbers),
        table="representations",
        plot="probe",
        note="\n\n".join([note, *said]),
    )
