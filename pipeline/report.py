"""Stage ``report``: all certificates -> metrics, tables, curves and one HTML page."""

from pathlib import Path

from pipeline import graph
from rrcm import certify, params, report
from rrcm.files import write_json


def main() -> None:
    with graph.running("report"):
        whole = params.load()
        tables = {name: certify.read(Path(f"certificates/{name}.csv")) for name in whole.evals}
        found = report.entries(whole, tables)
        report.write(found, whole, Path("report"))
        numbers = report.metrics(
            found, radii=whole.report.radii, confidence=whole.report.confidence
        )
        write_json(Path("metrics.json"), numbers)


if __name__ == "__main__":
    graph.main(main)
