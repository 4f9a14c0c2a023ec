"""Radii in L1: a network under uniform noise beside one under Gaussian noise (eq. 61, 62).

    $ python -m benchmarks.l1 votes/tiny-gaussian-s050-e050.jsonl votes/tiny-uniform-s050-e050.jsonl

Votes of the same images, the first under Gaussian noise, whose L2 radii are L1 radii as well, the
second under uniform noise of the same standard deviation. Prints a table in Markdown.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from rrcm.analysis import entries, pairing
from rrcm.analysis.presentation import markup, tables
from rrcm.certification.votes import records
from rrcm.config.defaults import CONFIDENCE
from rrcm.core.errors import DataError


def main() -> None:
    """Print the table of each pair of files."""
    parser = argparse.ArgumentParser(description="Radii in L1, of Gaussian and of uniform noise.")
    parser.add_argument("files", nargs="+", type=Path, help="votes: Gaussian, uniform, Gaussian, …")
    files = parser.parse_args().files
    for first, second in zip(files[::2], files[1::2], strict=True):
        a = entries.from_votes(first.stem, *records.read(first))
        a = replace(a, table=a.table.assign(norm="l1"))
        b = entries.from_votes(second.stem, *records.read(second), certificates=["uniform"])
        if not pairing.same_images(a, b):
            raise DataError(f"{first} and {second} are not of the same images")
        radii = [radius for radius in entries.SERIES if radius <= 2 * b.votes[0].sigma]
        numbers = tables.comparison(a, b, radii=radii, confidence=CONFIDENCE)
        table = tables.accuracy_table([a, b], radii=radii, confidence=CONFIDENCE)
        print(markup.markdown(table.drop(columns=["abstain %"])))
        print(markup.markdown(tables.comparison_table([a, b], numbers)))


if __name__ == "__main__":
    main()
