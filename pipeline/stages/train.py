"""Stage ``train``: labelled images, and optionally weights -> a classifier for one sigma."""

from pathlib import Path

from pipeline.runtime import graph, training
from rrcm.config import sections
from rrcm.core import registry
from rrcm.models.trained.base import classifier
from rrcm.training.engine import distributed
from rrcm.training.engine.inputs import order
from rrcm.training.finetune import start, train


def main(name: str) -> None:
    with training.running(f"train@{name}") as stage:
        run = sections.read(f"runs.{name}", sections.Run)
        recipe = sections.read(f"recipes.{run.recipe}", sections.Recipe)
        model = sections.read_model(run)
        method = registry.load("methods", run.method)
        data = {name: training.read(name) for name in ("train", "validation")}
        data["train"] = data["train"].labelled(recipe.labels, seed=run.seed)
        classes, images = data["train"].classes, data["train"].images
        training.require_fit(run.model, model.shape, data["train"])
        training.on_devices(stage, recipe.compute)
        state = start(run, recipe, model, classes=len(classes), device=distributed.device())
        made_with = {}
        if run.start != sections.NONE:
            made_with = classifier.begin(state.modules["classifier"], Path(run.start))
        per_epoch = order.steps_per_epoch(len(images), batch_size=recipe.batch_size)
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
            return  # the process that started this one continues
        out = Path("models", name)
        kept = {"condition": recipe.condition, "final_norm": recipe.final_norm, "sigma": run.sigma}
        read = (f"runs.{name}", f"recipes.{run.recipe}", f"models.{run.model}")
        kept["params"] = made_with | sections.as_written(*read)
        classifier.save(out, state.best, model=model, config={"classes": list(classes), **kept})
        training.write_logs(out, state, stage)
        stage.notes |= {"seed": run.seed, "data": training.data_digests("train", "validation")}
        stage.notes["validation_accuracy"] = state.best_score


if __name__ == "__main__":
    graph.main(main)
