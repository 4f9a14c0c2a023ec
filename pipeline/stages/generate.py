"""Stage ``generate``: a diffusion model, and what it is told -> pictures, and how far they are."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from pipeline.runtime import graph
from rrcm.config import sections
from rrcm.config.generation import Generation
from rrcm.core import progress
from rrcm.core.files import atomic, write_json
from rrcm.data.splits import shards
from rrcm.diffusion import condition, sampling
from rrcm.evaluation import generation
from rrcm.training.engine import distributed


def main(name: str) -> None:
    with graph.running(f"generate@{name}") as stage:
        cfg = sections.read(f"generations.{name}", Generation)
        train, test = (shards.read(Path("shards"), split) for split in ("train", "test"))
        device, out, made, heard = distributed.device(), Path("generated", name), {}, {}
        model, told = sampling.load(cfg, train, device=device)
        features = condition.load(Path(cfg.features), train, device=device)
        rows, kinds = min(cfg.images, len(test.labels)), {"noise": False, "images": True}
        with progress.bar(rows * (2 if told else 1), 0, stage.name, " pictures") as shown:
            for kind, real in (kinds if told else {"unconditional": False}).items():
                parts, conditions = [], []
                for x, c in sampling.generate(model, cfg, test, told=told, real=real, rows=rows):
                    parts.append(sampling.pictures(x, max_value=train.max_value))
                    conditions += [] if c is None else [c]
                    shown.update(len(x))
                made[kind] = images = np.concatenate(parts)
                if told:
                    heard[kind] = generation.heard(images, told, torch.cat(conditions), train)
                with atomic(out / "pictures" / f"{kind}.png") as part:
                    Image.fromarray(generation.grid(images, train)).save(part, format="PNG")
        found = generation.distances(made, train, test, features)
        write_json(out / "metrics.json", found | {"features": cfg.features, "heard": heard})
        stage.notes |= {"device": torch.device(device).type, "seed": cfg.seed}


if __name__ == "__main__":
    graph.main(main)
