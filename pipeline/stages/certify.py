"""Stage ``certify``: votes -> one certified radius per image."""

from pathlib import Path

from pipeline.runtime import graph
from rrcm.certification import certify
from rrcm.certification.votes import records
from rrcm.config import certification, sections
from rrcm.core.errors import VotesError


def main(name: str) -> None:
    with graph.running(f"certify@{name}") as stage:
        evaluation = sections.read(f"evals.{name}", certification.Eval)
        cfg = sections.read("certify", certification.Certify)
        path = Path(f"votes/{name}.jsonl")
        header, rows = records.read(path)
        if (header.run, header.sigma) != (evaluation.run, evaluation.sigma):
            raise VotesError(
                f"{path}: votes of {header.run} at sigma {header.sigma}, but evals.{name} is "
                f"{evaluation.run} at sigma {evaluation.sigma}"
            )
        table = certify.certify(header, rows, certificates=cfg.certificates, alpha=cfg.alpha)
        certify.write(table, Path(f"certificates/{name}.csv"))
        stage.notes |= {"images": len(table), "draws": int(table["n"].sum())}


if __name__ == "__main__":
    graph.main(main)
