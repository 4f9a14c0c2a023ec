"""presets/digits-all.yaml: one budget of gradient evaluations for every method."""

from collections import defaultdict

import pytest
import torch
from helpers import shipped, split

from rrcm.config import sections
from rrcm.core import registry
from rrcm.training import finetune, pretrain
from rrcm.training.engine.draws import Draws
from rrcm.training.engine.inputs.loading import Batch
from rrcm.training.engine.loop import Training

ALL = shipped("digits-all")
DATA = split(1797 - ALL.data.test - ALL.data.validation, seed=0)
BATCH = 4


def of_a_run(run: sections.Run) -> int:
    recipe = ALL.recipes[run.recipe]
    model = sections.Model(architecture=run.architecture, shape=ALL.models[run.model])
    state = finetune.start(run, recipe, model, classes=10)
    method = registry.load("methods", run.method)
    return evaluations(finetune.train(state, method, {"train": DATA}, run, recipe), "image")


def of_a_pretraining(cfg: sections.Pretrain) -> int:
    model = sections.Model(architecture=cfg.architecture, shape=ALL.models[cfg.model])
    return evaluations(pretrain.pretrain(pretrain.start(cfg, model), DATA, cfg), *cfg.augment)


def evaluations(training: Training, *views: str) -> int:
    """Gradient evaluations of a training, by those of one step."""
    images = {view: torch.rand(BATCH, 1, 8, 8) for view in views}
    batch = Batch(step=training.steps // 2, views=images, labels=torch.arange(BATCH))
    training.loss(batch, Draws(0, 0))
    return training.called[0].taken()[1] // BATCH * training.steps * training.batch_size


def test_every_method_has_the_same_number_of_gradient_evaluations():
    """A pre-training counts for each run that starts from it with its equal share."""
    starts, spent = defaultdict(list), {}
    for name, run in ALL.runs.items():
        starts[run.start].append(name)
        spent[name] = of_a_run(run)
    for name, cfg in ALL.pretrain.items():
        share = of_a_pretraining(cfg) / len(starts[f"pretrained/{name}"])
        for run in starts[f"pretrained/{name}"]:
            spent[run] += share

    for name in {evaluation.run for evaluation in ALL.evals.values()}:
        members = ALL.runs_of(name) or [name]
        assert sum(spent[run] for run in members) == pytest.approx(85_248, rel=1e-12), name


def test_what_is_certified_is_every_method_and_objective_and_boosting():
    """Under its own name: an encoder's objective names what is fine-tuned as rRCM is."""
    known = {*registry.names("methods"), *registry.names("objectives"), "boosting"}
    found = ALL.classifiers()

    assert {found[each.run].method for each in ALL.evals.values()} == known
    assert {(found[each.run].method, each.sigma) for each in ALL.evals.values()} == {
        (method, sigma) for method in known for sigma in (0.25, 0.5, 1.0)
    }
