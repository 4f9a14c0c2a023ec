"""Stage ``train``: labelled images, and optionally weights -> a classifier for one sigma."""

from pathlib import Path

from pipeline.runtime import graph, training
from rrcm.config import sections
from rrcm.core import registry
from rrcm.models.trained.base import classifier
from rrcm.training.engine import distributed
from rrcm.training.finetune import start, taught_by, train


def main(name: str) -> None:
    with training.running(f"train@{name}") as stage:
        run = sections.read(f"runs.{name}", sections.Run)
        recipe = sections.read(f"recipes.{run.recipe}", sections.Recipe)
        model, splits = sections.read_model(run), ("train", "validation")
        method = registry.load("methods", run.method)
        data = training.begin(stage, recipe.compute, *splits, model=run.model, shape=model.shape)
        data["train"] = data["train"].labelled(recipe.labels, seed=run.seed)
        classes, made_with = list(data["train"].classes), {}
        state = start(run, recipe, model, classes=len(classes), device=distributed.device())
        teacher = None
        if hasattr(method, "table"):
            teacher, made_with = taught_by(Path(run.start), classes, state.device)
        elif run.start != sections.NONE:
            made_with = classifier.begin(state.modules["classifier"], Path(run.start))
        out = Path("models", name)
        if training.run(train(state, method, data, run, recipe, teacher), stage, data, out):
            read = (f"runs.{name}", f"recipes.{run.recipe}", f"models.{run.model}")
            config = {
                "classes": classes,
                "condition": recipe.condition,
                "final_norm": recipe.final_norm,
                "sigma": run.sigma,
                "params": made_with | sections.as_written(*read),
            }
            classifier.save(out, state.best, model=model, config=config)
            stage.notes["validation_accuracy"] = state.best_score


if __name__ == "__main__":
    graph.main(main)
