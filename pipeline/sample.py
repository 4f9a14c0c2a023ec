"""Stage ``sample``: a classifier and test images -> noisy votes. The only costly stage."""

import shutil
from pathlib import Path

from pipeline import graph, sampling
from rrcm import config, shards
from rrcm.files import atomic


def main(name: str) -> None:
    with graph.running(f"sample@{name}") as stage:
        evaluation = config.read(f"evals.{name}", config.Eval)
        cfg = config.read("sample", config.Sample)
        split = shards.read(Path("shards"), "test")
        votes = stage.scratch / "votes.jsonl"
        stage.notes |= sampling.run(evaluation, cfg, split, votes, title=stage.name)
        with atomic(Path(f"votes/{name}.jsonl")) as part:
            shutil.copyfile(votes, part)


if __name__ == "__main__":
    graph.main(main)
