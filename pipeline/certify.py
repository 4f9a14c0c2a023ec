"""Stage ``certify``: votes -> one certified radius per image."""

from pathlib import Path

from pipeline import graph
from rrcm import certify, config, votes
from rrcm.errors import VotesError


def main(name: str) -> None:
    with graph.running(f"certify@{name}") as stage:
        evaluation = config.read(f"evals.{name}", config.Eval)
        cfg = config.read("certify", config.Certify)
        path = Path(f"votes/{name}.jsonl")
        header, rows = votes.read(path)
        if (header.run, header.sigma) != (evaluation.run, evaluation.sigma):
            raise VotesError(
                f"{path}: votes of {header.run} at sigma {header.sigma}, but evals.{name} is "
                f"{evaluation.run} at sigma {evaluation.sigma}"
            )
        table = certify.certify(header, rows, certificate=cfg.certificate, alpha=cfg.alpha)
        certify.write(table, Path(f"certificates/{name}.csv"))
        stage.notes["images"] = len(table)


if __name__ == "__main__":
    graph.main(main)
