"""presets/*-all.yaml and cifar10-vit.yaml: one budget of gradient evaluations for every method."""

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
IMAGES = {"digits-all": (1197, (1, 8, 8)), "cifar10-all": (48_900, (3, 32, 32))}
IMAGES["cifar10-vit"] = IMAGES["cifar10-all"]


def images_of(preset: str) -> Split:
    """As many training images as a preset's, without a picture."""
    images, shape = IMAGES[preset]
    return replace(
        split(4, seed=0),
        idx=np.arange(images),
        images=np.zeros((images, *shape), dtype=np.uint8),
        labels=np.arange(images) % 10,
    )


def uncompiled(cfg):
    """The same, for four images."""
    return replace(cfg, compute=replace(cfg.compute, compile=False))


def of_a_run(whole: Params, name: str, data: Split) -> np.ndarray:
    run = whole.runs[name]
    recipe = uncompiled(whole.recipes[run.recipe])
    model = sections.Model(architecture=run.architecture, shape=whole.models[run.model])
    state = finetune.start(run, recipe, model, classes=10)
    method = registry.load("methods", run.method)
    teacher = (state.modules["classifier"], torch.tensor(run.sigma))  # some classifier
    training = finetune.train(state, method, {"train": data}, run, recipe, teacher=teacher)
    if hasattr(method, "table"):  # it is made before the first step
        state.kept["table"] = torch.full((BATCH, 10), 0.1)
    phases = recipe.epochs if hasattr(method, "weigh") else 1  # which begin with an epoch
    return taken(training, data, "image", moments=phases)


def of_a_pretraining(whole: Params, name: str, data: Split) -> np.ndarray:
    cfg = uncompiled(whole.pretrain[name])
    model = sections.Model(architecture=cfg.architecture, shape=whole.models[cfg.model])
    return taken(pretrain.pretrain(pretrain.start(cfg, model), data, cfg), data, *cfg.augment)


def taken(training: Training, data: Split, *views: str, moments: int = 1) -> np.ndarray:
    """Passes and gradient evaluations of a training, by those of steps at some moments of it."""
    images = {view: torch.rand(BATCH, *data.images.shape[1:]) for view in views}
    rows = torch.arange(BATCH)
    for moment in range(moments):
        step = (2 * moment + 1) * training.steps // (2 * moments)
        training.loss(Batch(step=step, views=images, labels=rows, rows=rows), Draws(0, 0))
    total = np.array(training.called[0].taken()) // BATCH * training.batch_size
    return total * training.steps // moments


@pytest.mark.parametrize(
    ("preset", "budget", "apart"),
    [
        ("digits-all", 85_248, 1e-12),
        ("cifar10-all", 1_466_880, 0.007),  # whole epochs of whole batches
        ("cifar10-vit", 1_466_880, 0.007),
    ],
)
def test_every_method_has_the_same_number_of_gradient_evaluations(preset, budget, apart):
    """What runs start from counts for each of them, on the digits with its share.

    Of CIFAR-10 the teacher of CAT-RS does not, as the preset says.
    """
    whole, starts, spent, data = shipped(preset), defaultdict(list), {}, images_of(preset)
    assert len(data.idx) == {"digits": 1797, "cifar10": 50_000}[whole.data.name] - (
        whole.data.test + whole.data.validation + whole.data.choice
    )
    for name, run in whole.runs.items():
        starts[run.start].append(name)
        spent[name] = of_a_run(whole, name, data)[1]
    made = {f"models/{name}": cost for name, cost in spent.items()}
    made |= {
        f"pretrained/{name}": of_a_pretraining(whole, name, data)[1] for name in whole.pretrain
    }
    for start, runs in starts.items():
        for run in runs if start in made else []:
            if preset == "cifar10-all" and whole.runs[run].method == "catrs":
                continue
            spent[run] += made[start] / (len(runs) if preset == "digits-all" else 1)

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
