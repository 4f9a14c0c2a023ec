"""The ledger: every released log audited, recomputed, brought to one alpha, and shown.

``python -m benchmarks.field --from DIR`` reads the logs below DIR, whose paths say what they are
(benchmarks/field/paths.py). It writes their rows to ``presets/field/ledger.csv.gz``, beside those
of other logs, and renders docs/published.md; without ``--from`` it only does the latter. With
``--tests`` it also tests pairs of methods and the choice of recipes anew, for which DIR must have
all logs.
"""

import argparse
import time
from pathlib import Path

import pandas as pd

from benchmarks.field import chances, ledger
from benchmarks.field.page import page
from rrcm.core.ending import reported
from rrcm.core.errors import DataError
from rrcm.core.files import write_text

FIELD, PAGE = Path("presets/field"), Path("docs/published.md")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="logs", type=Path, help="the folder of the logs")
    parser.add_argument("--tests", action="store_true", help="also pairs and choices, of all logs")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    asked, start, path = parser.parse_args(), time.monotonic(), FIELD / "ledger.csv.gz"
    if asked.logs:
        known = ledger.read(path)["file"] if asked.tests else []
        if lacking := [file for file in known if not (asked.logs / file).exists()]:
            raise DataError(
                f"{asked.logs}: --tests needs every log of {path}; {len(lacking):,} are not there, "
                f"such as {lacking[0]}"
            )
        found = ledger.measure(asked.logs, jobs=asked.jobs)
        rows = ledger.merged(path, found)
        ledger.write(rows, path)
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in found["verdict"].value_counts().items())
        for _, one in found[found["verdict"] != ledger.CLEAN].iterrows():
            print(f"{one['file']}: {one['verdict']}: {one['found']}")
        print(f"{len(found):,} logs in {time.monotonic() - start:.0f} s: {kinds}")
        if asked.tests:
            ledger.write(pd.concat(chances.pairs(rows, asked.logs)), FIELD / "pairs.csv.gz")
            ledger.write(pd.DataFrame(chances.curse(rows, asked.logs)), FIELD / "curse.csv.gz")
    write_text(PAGE, page(FIELD))


if __name__ == "__main__":
    with reported():
        main()
