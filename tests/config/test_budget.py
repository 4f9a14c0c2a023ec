"""presets/*-all.yaml: one budget of gradient evaluations for every method."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import shipped, split

from rrcm.config import sections
from rrcm.config.params import Params
from rrcm.core import registry
from rrcm.data.splits.shards import Split
from rrcm.training import finetune, pretrain
from rrcm.training.engine.draws import Draws
from rrcm.training.engine.inputs.loading import Batch
from rrcm.training.engine.loop import Training

BATCH = 4


def of_a_run(whole: Params, run: sections.Run, data: Split) -> int:
    recipe = whole.recipes[run.recipe]
    model = sections.Model(architecture=run.architecture, shape=whole.models[run.model])
    state = finetune.start(run, recipe, model, classes=10)
    method = registry.load("methods", run.method)
    return evaluations(finetune.train(state, method, {"train": data}, run, recipe), data, "image")


def of_a_pretraining(whole: Params, cfg: sections.Pretrain, data: Split) -> int:
    model = sections.Model(architecture=cfg.architecture, shape=whole.models[cfg.model])
    return evaluations(pretrain.pretrain(pretrain.start(cfg, model), data, cfg), data, *cfg.augment)


def evaluations(training: Training, data: Split, *views: str) -> int:
    """Gradient evaluations of a training, by those of one step."""
    images = {view: torch.rand(BATCH, *data.images.shape[1:]) for view in views}
    batch = Batch(step=training.steps // 2, views=images, labels=torch.arange(BATCH))
    training.loss(batch, Draws(0, 0))
    return training.called[0].taken()[1] // BATCH * training.steps * training.batch_size


@pytest.mark.parametrize(
    ("preset", "images", "shape", "budget", "apart"),
    [
        ("digits-all", 1197, (1, 8, 8), 85_248, 1e-12),
        ("cifar10-all", 48_900, (3, 32, 32), 1_466_880, 0.007),  # whole epochs of whole batches
    ],
)
def test_every_method_has_the_same_number_of_gradient_evaluations(
    preset, images, shape, budget, apart
):
    """A pre-training counts for each run that starts from it, on the digits with its share."""
    whole, starts, spent = shipped(preset), defaultdict(list), {}
    assert images == {"digits": 1797, "cifar10": 50_000}[whole.data.name] - (
        whole.data.test + whole.data.validation + whole.data.choice
    )
    data = replace(
        split(4, seed=0),
        idx=np.arange(images),
        images=np.zeros((images, *shape), dtype=np.uint8),
        labels=np.arange(images) % 10,
    )
    for name, run in whole.runs.items():
        starts[run.start].append(name)
        spent[name] = of_a_run(whole, run, data)
    for name, cfg in whole.pretrain.items():
        runs = starts[f"pretrained/{name}"]
        for run in runs:
            shared = len(runs) if preset == "digits-all" else 1
            spent[run] += of_a_pretraining(whole, cfg, data) / shared

    for name in {evaluation.run for evaluation in whole.evals.values()}:
        members = whole.runs_of(name) or [name]
        assert sum(spent[run] for run in members) == pytest.approx(budget, rel=apart), name


def test_what_is_certified_is_every_method_and_objective_and_boosting():
    """Under its own name: an encoder's objective names what is fine-tuned as rRCM is."""
    whole = shipped("digits-all")
    known = {*registry.names("methods"), *registry.names("objectives"), "boosting"}
    found = whole.classifiers()

    assert {(found[each.run].method, each.sigma) for each in whole.evals.values()} == {
        (method, sigma) for method in known for sigma in (0.25, 0.5, 1.0)
    }
