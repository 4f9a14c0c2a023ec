"""Stage ``pretrain``: images without labels -> an encoder that resists noise."""

import json
from pathlib import Path

from pipeline.runtime import graph, training
from rrcm.config import sections
from rrcm.models.trained.base import checkpoint
from rrcm.training.engine import distributed
from rrcm.training.pretrain import pretrain, start


def main(name: str) -> None:
    with training.running(f"pretrain@{name}") as stage:
        cfg = sections.read(f"pretrain.{name}", sections.Pretrain)
        model = sections.read_model(cfg)
        split = training.read("train")
        training.require_fit(cfg.model, model.shape, split)
        training.on_devices(stage, cfg.compute)
        state = start(cfg, model, device=distributed.device())
        encoder = state.modules["online"]["encoder"]
        training.run(
            pretrain(state, split, cfg),
            state,
            stage,
            network=encoder,
            size=split.images.shape[1:],
            batch_size=cfg.batch_size,
            total=cfg.steps,
            compute=cfg.compute,
        )
        if distributed.launched():
            return  # the process that started this one continues
        out = Path("pretrained", name)
        made_with = sections.as_written(f"pretrain.{name}", f"models.{cfg.model}")
        about = {"params": json.dumps(made_with)}
        checkpoint.save(out / "encoder.safetensors", encoder.state_dict(), about)
        training.write_logs(out, state, stage)
        stage.notes |= {"seed": cfg.seed, "data": training.data_digests("train")}


if __name__ == "__main__":
    graph.main(main)
