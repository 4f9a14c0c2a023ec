"""Stage ``generate``: a diffusion model -> pictures, and their Fréchet distance to real ones."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from pipeline.runtime import graph
from rrcm.config import evaluation, sections
from rrcm.core import progress
from rrcm.core.files import atomic, write_json
from rrcm.data.splits import shards
from rrcm.diffusion import sampling
from rrcm.evaluation import fid, image_grid
from rrcm.models.trained.base import checkpoint
from rrcm.training.engine import distributed


def main(name: str) -> None:
    with graph.running(f"generate@{name}") as stage:
        cfg = sections.read(f"generations.{name}", evaluation.Generation)
        data = {name: shards.read(Path("shards"), name) for name in ("train", "test")}
        shape, max_value = data["train"].images.shape[1:], data["train"].max_value
        device = distributed.device()
        model, told = sampling.load(cfg, shape, device=device)
        features = fid.features(cfg, shape, device=device)  # errors before hours of sampling
        batches = []
        with progress.bar(cfg.images, 0, stage.name, " pictures") as shown:
            for batch in sampling.generate(model, cfg, shape, max_value=max_value, told=told):
                batches.append(batch)
                shown.update(len(batch))
        made, out = np.concatenate(batches), Path("generated", name)
        checkpoint.save(
            out / "samples.safetensors",
            {"images": torch.from_numpy(made)},
            {"white": str(max_value)},
        )
        real = data["test"].images[: image_grid.SIDE**2]
        shown = {"samples": image_grid.samples(made, real, max_value=max_value)}
        if told is not None:
            x = torch.from_numpy(data["test"].pixels(slice(image_grid.SIDE)))
            cells = sampling.from_images(model, cfg, x, max_value=max_value, told=told)
            at = sampling.levels(told)
            shown["levels"] = image_grid.levels(
                real[: image_grid.SIDE], cells, at, max_value=max_value
            )
        for sheet, pixels in shown.items():
            with atomic(out / "sheets" / f"{sheet}.png") as part:
                Image.fromarray(pixels.squeeze()).save(part, format="PNG")
        found = fid.measure(made, data, cfg, of=features, device=device)
        write_json(out / "metrics.json", found)
        stage.notes |= {"device": torch.device(device).type, "seed": cfg.seed}


if __name__ == "__main__":
    graph.main(main)
