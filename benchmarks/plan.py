"""What `rrcm plan` estimates on this processor, beside what the stages of a checkout then took.

``python -m benchmarks.plan`` in a checkout whose provenance/ was made on a machine like this one.
Stages that were interrupted are left out. A row is the stages of one kind, with the sum of their
seconds; samplings are compared at the draws that they took.
"""

import argparse
import os
import platform
from pathlib import Path

from pipeline import checked
from pipeline.project.plan import at_hand
from pipeline.project.work import Planned
from rrcm.core.files import read_json


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    whole = checked.load()
    planned, machine = Planned(whole), f"{platform.machine()}, {os.cpu_count()} cores"
    sections = {
        "pretrain": whole.pretrain, "train": whole.runs,
        "denoise": whole.denoisers, "sample": whole.evals,
    }  # fmt: skip
    sums: dict[str, list[float]] = {}
    device = at_hand()
    for path in sorted(Path("provenance").glob("*@*.json")):
        record = read_json(path)
        group, _, item = path.stem.partition("@")
        on_cpu = record.get("device") == "cpu" or record.get("provider") == "CPUExecutionProvider"
        here = on_cpu and record.get("machine") == machine and not record.get("resumed_at")
        if not here or item not in sections.get(group, {}):
            continue
        work = planned.stage(path.stem)
        share = record["draws"] / work.draws if group == "sample" else 1.0
        if estimated := device.seconds(work):
            row = sums.setdefault(group, [0, 0, 0])
            row[0] += 1
            row[1] += share * estimated
            row[2] += record["seconds"]
    print("| stages | | estimated | taken | ratio |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for group, (count, estimated, taken) in sums.items():
        ratio = taken / estimated
        print(f"| {group} | {count:g} | {estimated:,.0f} s | {taken:,.0f} s | {ratio:.2f} |")


if __name__ == "__main__":
    main()
