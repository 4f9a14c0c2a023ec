"""Stage ``shard``: raw data -> WebDataset shards of train, validation and test."""

from pathlib import Path

from pipeline import graph
from rrcm import config, registry, shards


def main() -> None:
    with graph.running("shard") as stage:
        cfg = config.read("data", config.Data)
        dataset = registry.load("data", cfg.name)
        index = shards.write(
            dataset.examples(Path("data")),
            Path("shards"),
            classes=dataset.CLASSES,
            white=dataset.WHITE,
            test=cfg.test,
            validation=cfg.validation,
            seed=cfg.seed,
            shard_size=cfg.shard_size,
        )
        stage.notes["images"] = {name: len(s["idx"]) for name, s in index["splits"].items()}


if __name__ == "__main__":
    graph.main(main)
