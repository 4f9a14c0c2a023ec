"""Stage ``train``: labelled images, and perhaps weights -> a classifier for one sigma."""

from pathlib import Path

from pipeline import graph, training
from rrcm import batches, classifier, config, distributed, registry
from rrcm.errors import ConfigError
from rrcm.train import start, train


def main(name: str) -> None:
    with training.running(f"train@{name}") as stage:
        run = config.read(f"runs.{name}", config.Run)
        recipe = config.read(f"recipes.{run.recipe}", config.Recipe)
        model = config.read_model(run)
        method = registry.load("methods", run.method)
        data = {name: training.read(name) for name in ("train", "validation")}
        classes, images = data["train"].classes, data["train"].images
        training.require_fit(run.model, model.shape, data["train"])
        if method.PRETRAINED and run.start == config.NOTHING:
            raise ConfigError(f"runs.{name}.start: {run.method} starts from a pre-trained encoder")
        training.on_devices(stage, recipe.compute)
        state = start(run, recipe, model, classes=len(classes), device=distributed.device())
        made_with = {}
        if run.start != config.NOTHING:
            made_with = classifier.begin(state.modules["classifier"], Path(run.start))
        per_epoch = batches.steps_per_epoch(len(images), batch_size=recipe.batch_size)
        training.run(
            train(state, method, data, run, recipe),
            state,
            stage,
            network=state.modules["classifier"],
            size=images.shape[1:],
            batch_size=recipe.batch_size,
            total=recipe.epochs * per_epoch,
            compute=recipe.compute,
        )
        if distributed.launched():
            return  # the stage that started this process goes on
        out = Path("models", name)
        kept = {"condition": recipe.condition, "final_norm": recipe.final_norm, "sigma": run.sigma}
        sections = (f"runs.{name}", f"recipes.{run.recipe}", f"models.{run.model}")
        kept["params"] = made_with | config.as_written(*sections)
        classifier.save(out, state.best, model=model, config={"classes": list(classes), **kept})
        training.write_logs(out, state, stage)
        stage.notes |= {"seed": run.seed, "data": training.data_digests("train", "validation")}
        stage.notes["validation_accuracy"] = state.best_score


if __name__ == "__main__":
    graph.main(main)
