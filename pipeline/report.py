"""Stage ``report``: all certificates -> metrics, tables, curves and one HTML page."""

from pathlib import Path

from pipeline import graph
from rrcm import certify, config, report
from rrcm.files import write_json


def main() -> None:
    with graph.running("report"):
        params = config.load()
        tables = {name: certify.read(Path(f"certificates/{name}.csv")) for name in params.evals}
        found = report.entries(params, tables)
        report.write(found, params, Path("report"))
        numbers = report.metrics(
            found, radii=params.report.radii, confidence=params.report.confidence
        )
        write_json(Path("metrics.json"), numbers)


if __name__ == "__main__":
    graph.main(main)
