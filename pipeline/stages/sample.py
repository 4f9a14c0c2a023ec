"""Stage ``sample``: a classifier and images -> noisy votes. The only costly stage."""

from pathlib import Path
from typing import Any

from pipeline.runtime import graph
from rrcm.certification.sampling import procedure, session
from rrcm.config import certification, sections
from rrcm.data.splits import shards


def main(name: str) -> None:
    with graph.running(f"sample@{name}") as stage:
        evaluation = sections.read(f"evals.{name}", certification.Eval)
        cfg = sections.read("sample", certification.Sample)
        stopping = sections.read(f"stopping.{cfg.stop}", dict[str, Any])
        split = shards.read(Path("shards"), cfg.split)
        backend = session.backend(evaluation, cfg)
        header = procedure.header(backend, split, evaluation.run, cfg, stopping)
        stage.notes |= session.run(
            backend,
            header,
            split,
            journal=stage.scratch / "votes.journal",
            path=Path(f"votes/{name}.jsonl"),
            title=stage.name,
            reference=session.reference(evaluation, cfg),
        )


if __name__ == "__main__":
    graph.main(main)
