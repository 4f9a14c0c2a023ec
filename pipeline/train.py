"""Stage ``train``: labelled images, and perhaps an encoder -> a classifier for one sigma."""

from pathlib import Path

from pipeline import graph, training
from rrcm import batches, checkpoints, classifier, config, registry, shards
from rrcm.errors import ConfigError
from rrcm.train import start, train


def main(name: str) -> None:
    with graph.running(f"train@{name}") as stage:
        run = config.read(f"runs.{name}", config.Run)
        recipe = config.read(f"recipes.{run.recipe}", config.Recipe)
        model = config.read_model(run)
        method = registry.load("methods", run.method)
        out = Path("models", name)
        data = {split: shards.read(Path("shards"), split) for split in ("train", "validation")}
        classes = data["train"].classes
        state = start(run, recipe, model, classes=len(classes), device=training.device())
        if run.start != "shards":
            path = Path(run.start, "encoder.safetensors")
            checkpoints.restore(
                state.modules["classifier"].encoder, checkpoints.load(path)[0], source=str(path)
            )
        elif method.PRETRAINED:
            raise ConfigError(f"runs.{name}.start: {run.method} starts from a pre-trained encoder")
        per_epoch = batches.steps_per_epoch(len(data["train"].idx), batch_size=recipe.batch_size)
        states = train(state, method, data, run, recipe)
        training.run(states, state, stage, total=recipe.epochs * per_epoch)
        classifier.save(
            out,
            state.best,
            model=model,
            config={"classes": list(classes), "condition": recipe.condition, "sigma": run.sigma},
        )
        training.write_log(out / "log.csv", state)
        stage.notes["validation_accuracy"] = state.best_score


if __name__ == "__main__":
    graph.main(main)
