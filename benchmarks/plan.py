"""What `rrcm plan` estimates on this processor, beside what the stages of a checkout then took.

``python -m benchmarks.plan`` in a checkout whose provenance/ was made on a machine like this one.
Stages that were interrupted, or had another length, are left out. A row is the stages of one kind
and network, with the sum of their seconds; samplings are compared at the draws that they took.
"""

import argparse
import os
import platform
from pathlib import Path

from pipeline import checked
from pipeline.project.planning.work import Planned
from rrcm.core.files import read_json

WITHIN = 2.0


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    whole = checked.load()
    planned, machine = Planned(whole), f"{platform.machine()}, {os.cpu_count()} cores"
    sections = {
        "pretrain": whole.pretrain, "train": whole.runs,
        "denoise": whole.denoisers, "sample": whole.evals,
    }  # fmt: skip
    sums: dict[tuple[str, str], list[float]] = {}
    for path in sorted(Path("provenance").glob("*@*.json")):
        record = read_json(path)
        group, _, item = path.stem.partition("@")
        on_cpu = record.get("device") == "cpu" or record.get("provider") == "CPUExecutionProvider"
        here = on_cpu and record.get("machine") == machine and not record.get("resumed_at")
        if not here or item not in sections.get(group, {}):
            continue
        work = planned.stage(path.stem)
        if group == "sample":
            share = record["draws"] / (work.images * work.draws)
        elif record["gradient_evaluations"] == work.gradients:
            share = 1.0
        else:
            continue
        if estimated := planned.seconds(work, None):
            row = sums.setdefault((group, " ".join(work.network)), [0, 0, 0])
            row[0] += 1
            row[1] += share * estimated
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
