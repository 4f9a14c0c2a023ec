"""Training of a classifier at one sigma, by any method, from an encoder or from scratch."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn

from rrcm.config.sections import Model, Recipe, Run
from rrcm.core.schema import parse
from rrcm.data.splits.shards import Split
from rrcm.models.trained.base import classifier
from rrcm.noise import streams
from rrcm.training.engine import distributed
from rrcm.training.engine.computing import Computed, evaluating, prepare
from rrcm.training.engine.draws import Draws, uniform_of
from rrcm.training.engine.inputs import augment, order
from rrcm.training.engine.inputs.loading import Batch
from rrcm.training.engine.loop import Loss, State, Training, optimise

EVALUATION_BATCH = 512


def start(run: Run, recipe: Recipe, model: Model, *, classes: int, device: str = "cpu") -> State:
    """State before the first step: an untrained classifier and its optimizer, with layer decay."""
    torch.manual_seed(streams.torch_seed(run.seed, streams.INITIALISE))
    network = classifier.build(
        model, classes=classes, condition=recipe.condition, final_norm=recipe.final_norm
    ).to(device)
    network.head.requires_grad_(recipe.head == "trainable")
    groups = param_groups_layer_decay(
        network,
        weight_decay=recipe.optimizer.weight_decay,
        no_weight_decay_list=("encoder.cls_token", "encoder.pos_embed"),
        layer_decay=recipe.layer_decay,
    )
    return State(modules={"classifier": network}, optimizer=optimise(groups, recipe.optimizer))


def loss_of(called: nn.Module, method: ModuleType, run: Run, *, steps: int) -> Loss:
    """The loss of a training of ``steps`` by a module of rrcm/training/methods/."""
    constants = parse(run.loss, method.Config, where=f"runs: loss of method {run.method}")
    sigma = torch.tensor(run.sigma, device=next(called.parameters()).device)

    def loss(batch: Batch, draw: Draws) -> dict[str, Tensor]:
        x, y, done = batch.views["image"], batch.labels, batch.step / steps
        of_law = draw.of_law(run.noise)
        value = method.loss(called, x, y, sigma=sigma, draw=of_law, done=done, cfg=constants)
        return {run.method: value}

    return loss


def train(
    state: State, method: ModuleType, data: dict[str, Split], run: Run, recipe: Recipe
) -> Training:
    """The training of ``state`` for ``recipe.epochs``.

    The result is ``state.best``: the weights after the epoch with the best score on the validation
    split (`accuracy`; ties go to the latest), or after the last epoch, by ``recipe.selection``.
    Without epochs these are the initial weights. The test split is not read.

    ``method`` is a module of rrcm/training/methods/. ``data`` has the splits ``train``, of which
    all labels are used, and ``validation``.

    Raises:
        ConfigError: The network does not support ``recompute``.
    """
    network: Any = state.modules["classifier"].train()  # its class is the architecture's
    prepare(network.encoder, recipe.compute, name=run.architecture)
    called, split = Computed(network, recipe.compute), data["train"]
    sigma = torch.tensor(run.sigma, device=network.head.weight.device)
    per_epoch = order.steps_per_epoch(len(split.labels), batch_size=recipe.batch_size)
    steps = recipe.epochs * per_epoch
    mixer = augment.Mixer(recipe.mix, len(split.classes))

    def mixed(batch: Batch) -> Batch:
        first = distributed.rank() * len(batch.labels)
        draw = Draws(run.seed, batch.step, first=first, purpose="mix")
        x, y = mixer(batch.views["image"], batch.labels, draw)
        return replace(batch, views={"image": x}, labels=y)

    def keep() -> dict[str, float]:
        selects = recipe.selection == "validation" and state.step % per_epoch == 0
        if selects or state.step == steps:
            draws, seed = recipe.validation_draws, run.seed
            split, law = data["validation"], run.noise
            score = accuracy(called, split, sigma, draws=draws, seed=seed, law=law)
            if score >= state.best_score:
                state.best_score = score
                state.best = {k: v.detach().clone() for k, v in network.state_dict().items()}
        return {}

    return Training(
        state=state,
        called=[called],
        loss=loss_of(called, method, run, steps=steps),
        after=keep,
        split=split,
        augment={"image": recipe.augment},
        mixed=mixed,
        where=f"recipes.{run.recipe}",
        steps=steps,
        batch_size=recipe.batch_size,
        optimizer=recipe.optimizer,
        compute=recipe.compute,
        seed=run.seed,
    )


@torch.no_grad()
def accuracy(
    network: nn.Module, split: Split, sigma: Tensor, *, draws: int, seed: int, law: str = ""
) -> float:
    """Accuracy of ``network`` on ``draws`` noisy copies of each image.

    The noise is the same at every call, and is never used in certification. Processes share the
    images; each image is decoded once.
    """
    at_once = max(1, EVALUATION_BATCH // draws)  # images
    correct = torch.zeros((), dtype=torch.int64, device=sigma.device)
    parts = torch.arange(len(split.labels)).split(at_once)
    with evaluating(network):
        for rows in parts[distributed.rank() :: distributed.world()]:
            x = torch.from_numpy(split.pixels(rows.numpy())).to(sigma.device).repeat(draws, 1, 1, 1)
            labels = torch.from_numpy(split.labels[rows.numpy()]).to(sigma.device).repeat(draws)
            image = rows.to(sigma.device).repeat(draws)
            draw = torch.arange(draws, device=sigma.device).repeat_interleave(len(rows))
            z = streams.gaussian(seed, image, draw, tuple(x.shape[1:]), stream=streams.VALIDATE)
            z = uniform_of(z) if law == "uniform" else z
            correct += (network(x + sigma * z, sigma).argmax(dim=1) == labels).sum()
    return distributed.total(correct).item() / (draws * len(split.labels))
