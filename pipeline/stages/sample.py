"""Stage ``sample``: a classifier and images -> noisy votes."""

from pathlib import Path
from typing import Any

from pipeline.runtime import graph
from rrcm.certification.sampling import drawing, store
from rrcm.config import certification, sections
from rrcm.data.splits import shards


def main(name: str) -> None:
    with graph.running(f"sample@{name}") as stage:
        journal, path = stage.scratch / "votes.journal", Path(f"votes/{name}.jsonl")
        stage.notes |= draw(name, journal=journal, path=path, title=stage.name)


def draw(name: str, *, journal: Path, path: Path, title: str, shard: str = "1/1") -> dict[str, Any]:
    """Draw the votes of an evaluation, or of a ``shard`` i/k of its images; see `drawing.run`."""
    cfg = sections.read("sample", certification.Sample)
    stopping = sections.read(f"stopping.{cfg.stop}", dict[str, Any])
    sampling = cfg.at(sections.read("certify", certification.Certify).alpha, stopping)
    evaluation = sections.read(f"evals.{name}", certification.Eval)
    split = shards.read(Path("shards"), cfg.split)
    classifier = drawing.backend(evaluation, sampling)
    return drawing.run(
        classifier,
        store.header(classifier, split, evaluation.run, sampling, shard=shard),
        split,
        journal=journal,
        path=path,
        title=title,
        earlier=graph.recorded(f"sample@{name}", f"votes/{name}.jsonl"),
    )


if __name__ == "__main__":
    graph.main(main)
