"""Stage ``report``: all certificates and votes -> metrics, tables, figures and one HTML page."""

from pathlib import Path

from pipeline.runtime import graph
from rrcm.analysis import entries, published, report
from rrcm.certification import certify
from rrcm.certification.votes import records
from rrcm.config import params
from rrcm.core.files import write_json


def main() -> None:
    with graph.running("report"):
        whole = params.load()
        tables = {name: certify.read(Path(f"certificates/{name}.csv")) for name in whole.evals}
        drawn = {name: records.read(Path(f"votes/{name}.jsonl")) for name in whole.evals}
        found = entries.entries(whole, tables, drawn)
        shown = {"radii": whole.report.radii, "confidence": whole.report.confidence}
        of = f"{whole.data.name}, {found[0].split} split"
        subject = f"{of} · certificate: {whole.certify.certificates[0]}"
        rows = published.read(Path(f"presets/published/{whole.data.name}.csv"))
        report.write(found, Path("report"), subject=subject, published=rows, **shown)
        metrics = report.metrics(found, radii=whole.report.radii)
        for name, numbers in metrics.items():
            write_json(Path(f"metrics/{name}.json"), numbers)
        for file in Path("metrics").glob("*.json"):  # of evaluations that are gone
            if file.stem not in metrics:
                file.unlink()


if __name__ == "__main__":
    graph.main(main)
