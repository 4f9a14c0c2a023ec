"""Stage ``generate``: a diffusion model -> pictures, and how far from real ones they are."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from pipeline import graph, progress
from rrcm import checkpoints, config, distributed, experiments, generate, realism, shards, sheets
from rrcm.files import atomic, write_json


def main(name: str) -> None:
    with graph.running(f"generate@{name}") as stage:
        cfg = config.read(f"generations.{name}", experiments.Generation)
        data = {name: shards.read(Path("shards"), name) for name in ("train", "test")}
        shape, white = data["train"].images.shape[1:], data["train"].white
        device = distributed.device()
        model, told = generate.load(cfg, shape, device=device)
        features = realism.features(cfg, shape, device=device)  # before hours of sampling
        batches = []
        with progress.bar(cfg.images, 0, stage.name, " pictures") as shown:
            for batch in generate.generate(model, cfg, shape, white=white, told=told):
                batches.append(batch)
                shown.update(len(batch))
        made, out = np.concatenate(batches), Path("generated", name)
        checkpoints.save(
            out / "samples.safetensors", {"images": torch.from_numpy(made)}, {"white": str(white)}
        )
        real = data["test"].images[: sheets.SIDE**2]
        shown = {"samples": sheets.samples(made, real, white=white)}
        if told is not None:
            x = torch.from_numpy(data["test"].pixels(slice(sheets.SIDE)))
            cells = generate.from_images(model, cfg, x, white=white, told=told)
            at = generate.levels(told)
            shown["levels"] = sheets.levels(real[: sheets.SIDE], cells, at, white=white)
        for sheet, pixels in shown.items():
            with atomic(out / "sheets" / f"{sheet}.png") as part:
                Image.fromarray(pixels.squeeze()).save(part, format="PNG")
        found = realism.measure(made, data, cfg, of=features, device=device)
        write_json(out / "metrics.json", found)
        stage.notes |= {"device": torch.device(device).type, "seed": cfg.seed}


if __name__ == "__main__":
    graph.main(main)
