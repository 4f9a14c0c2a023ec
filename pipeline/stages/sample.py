"""Stage ``sample``: a classifier and images -> noisy votes. The only costly stage."""

from pathlib import Path
from typing import Any

from pipeline.runtime import graph
from rrcm.certification.sampling import session
from rrcm.config import certification, sections


def main(name: str) -> None:
    with graph.running(f"sample@{name}") as stage:
        cfg = sections.read("sample", certification.Sample)
        stage.notes |= session.draw(
            sections.read(f"evals.{name}", certification.Eval),
            cfg,
            sections.read(f"stopping.{cfg.stop}", dict[str, Any]),
            earlier=graph.recorded(stage.name, f"votes/{name}.jsonl"),
            journal=stage.scratch / "votes.journal",
            path=Path(f"votes/{name}.jsonl"),
            title=stage.name,
        )


if __name__ == "__main__":
    graph.main(main)
