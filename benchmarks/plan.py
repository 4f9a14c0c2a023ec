"""What `rrcm plan` estimates on this processor, beside what the stages of a checkout then took.

``python -m benchmarks.plan`` in a checkout whose provenance/ was made on a machine like this one.
The estimate times each network for a moment and counts operations; it does not look at provenance/.
Stages that were interrupted are left out. A row is the stages of one kind and network, with the sum
of their seconds; samplings are compared at the draws that they took.
"""

import argparse

from pipeline import checked
from pipeline.planning import devices
from pipeline.planning.devices import Processor
from pipeline.planning.work import Planned

WITHIN = 2.0


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    planned = Planned(checked.load())
    on = Processor(planned=planned, records={})
    sums: dict[tuple[str, str], list[float]] = {}
    for record in devices.records():
        if (found := devices.operations_of(planned, record)) is not None:
            work, operations = found
            row = sums.setdefault((record["stage"].partition("@")[0], work.timed[1]), [0, 0, 0])
            row[0] += 1
            row[1] += operations / on.rate(work).value
            row[2] += record["seconds"]
    print("| stages | network | | estimated | taken | ratio | within a factor of two |")
    print("| --- | --- | ---: | ---: | ---: | ---: | --- |")
    for (group, network), (count, estimated, taken) in sums.items():
        ratio = taken / estimated
        verdict = "yes" if 1 / WITHIN <= ratio <= WITHIN else "**no**"
        print(
            f"| {group} | {network} | {count:g} | {estimated:,.0f} s | {taken:,.0f} s "
            f"| {ratio:.2f} | {verdict} |"
        )


if __name__ == "__main__":
    main()
