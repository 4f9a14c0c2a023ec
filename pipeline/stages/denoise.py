"""Stage ``denoise``: images, and optionally a classifier for the loss -> a denoiser."""

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
        split = training.read("train")
        training.require_fit(cfg.model, shape, split)
        training.on_devices(stage, cfg.compute)
        state = start(cfg, shape, device=distributed.device())
        guide = load_guide(cfg, shape, device=distributed.device())
        training.run(
            denoise(state, split, cfg, guide),
            state,
            stage,
            network=state.modules["network"],
            size=split.images.shape[1:],
            batch_size=cfg.batch_size,
            total=cfg.steps,
            compute=cfg.compute,
        )
        if distributed.launched():
            return  # the process that started this one continues
        out = Path("denoisers", name)
        denoiser.save(
            out,
            result(state).state_dict(),
            network=cfg.network,
            shape=shape,
            schedule=schedule(cfg),
            params=sections.as_written(f"denoisers.{name}", f"models.{cfg.model}"),
        )
        training.write_logs(out, state, stage)
        stage.notes |= {"seed": cfg.seed, "data": training.data_digests("train")}


if __name__ == "__main__":
    graph.main(main)
