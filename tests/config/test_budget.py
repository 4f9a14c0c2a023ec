"""presets/digits-all.yaml: one budget of gradient evaluations for every method."""

from collections import defaultdict

import pytest
import torch
from helpers import shipped

from rrcm.config import sections
from rrcm.core import registry
from rrcm.core.schema import parse
from rrcm.models.trained.base import classifier
from rrcm.training import pretrain as pretraining
from rrcm.training.engine.draws import Draws
from rrcm.training.engine.inputs import order
from rrcm.training.engine.loop import Computed

ALL = shipped("digits-all")
IMAGES = 1797 - ALL.data.test - ALL.data.validation
BATCH = 4


def of_a_run(run: sections.Run) -> int:
    """Gradient evaluations of its training, by those of one step."""
    recipe = ALL.recipes[run.recipe]
    model = sections.Model(architecture=run.architecture, shape=ALL.models[run.model])
    network = classifier.build(model, classes=10, condition="exact", final_norm=recipe.final_norm)
    called = Computed(network.train(), recipe.compute)
    method = registry.load("methods", run.method)
    method.loss(
        called,
        torch.rand(BATCH, 1, 8, 8),
        torch.arange(BATCH),
        sigma=torch.tensor(run.sigma),
        draw=Draws(0, 0),
        done=0.5,
        cfg=parse(run.loss, method.Config, where=""),
    )
    per_epoch = order.steps_per_epoch(IMAGES, batch_size=recipe.batch_size)
    return called.taken()[1] // BATCH * recipe.epochs * per_epoch * recipe.batch_size


def of_a_pretraining(cfg: sections.Pretrain) -> int:
    model = sections.Model(architecture=cfg.architecture, shape=ALL.models[cfg.model])
    state = pretraining.start(cfg, model)
    objective = registry.load("objectives", cfg.objective)
    online, target = (
        torch.nn.ModuleDict({name: Computed(part, cfg.compute) for name, part in module.items()})
        for module in state.modules.values()
    )
    levels, weights = pretraining.noise_levels(0, cfg.grid, steps=cfg.steps)
    objective.loss(
        online,
        target,
        {view: torch.rand(BATCH, 1, 8, 8) for view in objective.VIEWS},
        levels=levels,
        weights=weights,
        draw=Draws(0, 0),
        cfg=parse(cfg.loss, objective.Config, where=""),
    )
    return online["encoder"].taken()[1] // BATCH * cfg.steps * cfg.batch_size


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
