"""Stage ``pretrain``: images without labels -> an encoder that resists noise."""

from pathlib import Path

from pipeline import graph, training
from rrcm import checkpoints, config, shards
from rrcm.pretrain import pretrain, start


def main(name: str) -> None:
    with graph.running(f"pretrain@{name}") as stage:
        cfg = config.read(f"pretrain.{name}", config.Pretrain)
        model = config.read_model(cfg)
        out = Path("pretrained", name)
        split = shards.read(Path("shards"), "train")
        state = start(cfg, model, device=training.device())
        training.run(pretrain(state, split, cfg), state, stage, total=cfg.steps)
        encoder = state.modules["online"]["encoder"]
        checkpoints.save(out / "encoder.safetensors", encoder.state_dict())
        training.write_log(out / "log.csv", state)


if __name__ == "__main__":
    graph.main(main)
