"""Stage ``represent``: an encoder -> its linear probe, its Fréchet distance, and a condition."""

from pathlib import Path
from typing import Any

import pandas as pd
import torch

from pipeline import graph
from rrcm import condition, config, distributed, represent, shards
from rrcm.config import Model
from rrcm.experiments import Representation
from rrcm.files import atomic, write_json


def main(name: str) -> None:
    with graph.running(f"represent@{name}") as stage:
        cfg = config.read(f"representations.{name}", Representation)
        shape = config.read(f"models.{cfg.model}", dict[str, Any])
        model = Model(architecture=cfg.architecture, shape=shape)
        data = {name: shards.read(Path("shards"), name) for name in ("train", "test")}
        device = distributed.device()
        encoder = represent.load_encoder(Path(cfg.encoder), model, device=device)
        rows, out = represent.accuracies(encoder, data, cfg), Path("represented", name)
        with atomic(out / "probe.csv") as part:
            pd.DataFrame(rows).to_csv(part, index=False, float_format="%.6g", lineterminator="\n")
        found = {"probe": {f"{row['sigma']:g}": row["accuracy"] for row in rows}}
        found["frechet"] = represent.distance(encoder, data["train"], cfg)
        write_json(out / "metrics.json", found)
        scale = [torch.from_numpy(part) for part in represent.scale(encoder, data["train"], cfg)]
        told = condition.Condition(encoder, *scale, t_min=cfg.t_min, t_max=cfg.t_max)
        condition.save(out, told, model)
        stage.notes |= {"device": torch.device(device).type, "seed": cfg.seed}


if __name__ == "__main__":
    graph.main(main)
