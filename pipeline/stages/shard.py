"""Stage ``shard``: raw data -> WebDataset shards of train, validation, choice and test."""

import os
from pathlib import Path

from pipeline.runtime import graph
from rrcm.config import sections
from rrcm.core import progress, registry
from rrcm.data.ingest import sharding
from rrcm.data.splits import shards


def main() -> None:
    with graph.running("shard") as stage:
        cfg = sections.read("data", sections.Data)
        dataset = registry.load("datasets", cfg.name)
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
