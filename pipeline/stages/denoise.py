"""Stage ``denoise``: images, and optionally a classifier or an encoder -> a denoiser."""

from pathlib import Path
from typing import Any

from pipeline.runtime import graph, training
from rrcm.config import sections
from rrcm.config.denoisers import Denoising
from rrcm.diffusion.training import denoise, load_guide, result, schedule, start
from rrcm.models.trained import denoiser
from rrcm.training.engine import distributed


def main(name: str) -> None:
    with training.running(f"denoise@{name}") as stage:
        cfg = sections.read(f"denoisers.{name}", Denoising)
        shape = sections.read(f"models.{cfg.model}", dict[str, Any])
        data = training.begin(stage, cfg.compute, "train", model=cfg.model, shape=shape)
        state = start(cfg, shape, device=distributed.device())
        guide = load_guide(cfg, shape, data["train"], device=distributed.device())
        out = Path("denoisers", name)
        if training.run(denoise(state, data["train"], cfg, guide), stage, data, out):
            denoiser.save(
                out,
                result(state).state_dict(),
                network=cfg.network,
                shape=shape,
                schedule=schedule(cfg),
                params=sections.as_written(f"denoisers.{name}", f"models.{cfg.model}"),
            )


if __name__ == "__main__":
    graph.main(main)
