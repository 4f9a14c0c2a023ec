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
        data = training.begin(stage, cfg.compute, "train", model=cfg.model, shape=model.shape)
        state = start(cfg, model, device=distributed.device())
        encoder, out = state.modules["online"]["encoder"], Path("pretrained", name)
        if training.run(pretrain(state, data["train"], cfg), stage, data, out):
            made_with = sections.as_written(f"pretrain.{name}", f"models.{cfg.model}")
            about = {"params": json.dumps(made_with)}
            checkpoint.save(out / "encoder.safetensors", encoder.state_dict(), about)


if __name__ == "__main__":
    graph.main(main)
