"""Stage ``certify``: votes -> one certified radius per image."""

from pathlib import Path

from pipeline import graph
from rrcm import certify, config, settings, votes
from rrcm.errors import VotesError


def main(name: str) -> None:
    with graph.running(f"certify@{name}") as stage:
        evaluation = config.read(f"evals.{name}", settings.Eval)
        cfg = config.read("certify", settings.Certify)
        path = Path(f"votes/{name}.jsonl")
        header, rows = votes.read(path)
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
