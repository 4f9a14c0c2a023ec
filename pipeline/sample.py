"""Stage ``sample``: a classifier and images -> noisy votes. The only costly stage."""

from pathlib import Path
from typing import Any

from pipeline import graph, sampling
from rrcm import config, sample, settings, shards


def main(name: str) -> None:
    with graph.running(f"sample@{name}") as stage:
        evaluation = config.read(f"evals.{name}", settings.Eval)
        cfg = config.read("sample", settings.Sample)
        stopping = config.read(f"stopping.{cfg.stop}", dict[str, Any])
        split = shards.read(Path("shards"), cfg.split)
        backend = sampling.backend(evaluation, cfg)
        header = sample.header(backend, split, evaluation.run, evaluation.sigma, cfg, stopping)
        stage.notes |= sampling.run(
            backend,
            header,
            split,
            journal=stage.scratch / "votes.journal",
            path=Path(f"votes/{name}.jsonl"),
            title=stage.name,
            reference=sampling.reference(evaluation, cfg),
        )


if __name__ == "__main__":
    graph.main(main)
