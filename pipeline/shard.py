"""Stage ``shard``: raw data -> WebDataset shards of train, validation, choice and test."""

import os
from pathlib import Path

from pipeline import graph, progress
from rrcm import config, registry, shards
from rrcm.raw import sharding


def main() -> None:
    with graph.running("shard") as stage:
        cfg = config.read("data", config.Data)
        dataset = registry.load("data", cfg.name)
        listing = dataset.listing(Path("data") / cfg.name, graph.DATA / cfg.name)
        out, scratch = Path("shards"), stage.scratch / "shards"
        done = sharding.write(listing, out, cfg, scratch=scratch, workers=os.cpu_count() or 1)
        with progress.bar(len(listing.labels), 0, "shard", " images") as shown:
            for images in done:
                shown.update(images - shown.n)
        stage.notes["images"] = {
            name: shards.read_index(out / name)["images"] for name in shards.SPLITS
        }


if __name__ == "__main__":
    graph.main(main)
