"""Stage ``represent``: an encoder -> its linear probe, and its Fréchet distance."""

from pathlib import Path
from typing import Any

import pandas as pd
import torch

from pipeline.runtime import graph
from rrcm.config import sections
from rrcm.config.evaluation import Representation
from rrcm.config.sections import Model
from rrcm.core.files import write_csv, write_json
from rrcm.data.splits import shards
from rrcm.evaluation import probe
from rrcm.training.engine import distributed


def main(name: str) -> None:
    with graph.running(f"represent@{name}") as stage:
        cfg = sections.read(f"representations.{name}", Representation)
        shape = sections.read(f"models.{cfg.model}", dict[str, Any])
        model = Model(architecture=cfg.architecture, shape=shape)
        data = {name: shards.read(Path("shards"), name) for name in ("train", cfg.split)}
        device = distributed.device()
        encoder = probe.load_encoder(Path(cfg.encoder), model, device=device)
        rows, out = probe.accuracies(encoder, data, cfg), Path("represented", name)
        write_csv(pd.DataFrame(rows), out / "probe.csv", digits="%.6g")
        metrics = {"probe": {f"{row['sigma']:g}": row["accuracy"] for row in rows}}
        metrics["frechet"] = probe.distance(encoder, data["train"], cfg)
        write_json(out / "metrics.json", metrics)
        stage.notes |= {"device": torch.device(device).type, "seed": cfg.seed}


if __name__ == "__main__":
    graph.main(main)
