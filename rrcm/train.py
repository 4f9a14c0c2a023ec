"""Training of a classifier for one sigma, by any method, from a pre-trained encoder or scratch."""

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

import torch
from torch import Tensor, nn

import rrcm.models._torchvision  # noqa: F401 (timm imports torchvision)
from rrcm import augment, batches, classifier, distributed, loading, noise
from rrcm.computing import Computed
from rrcm.config import Model, Recipe, Run
from rrcm.draws import Draws
from rrcm.loading import Batch
from rrcm.loop import State, optimise
from rrcm.loop import train as loop
from rrcm.parsing import parse
from rrcm.shards import Split

from timm.optim import param_groups_layer_decay  # isort: skip (after _torchvision)

EVALUATION_BATCH = 512


def start(run: Run, recipe: Recipe, model: Model, *, classes: int, device: str = "cpu") -> State:
    """The state before the first step: an untrained classifier, and an optimizer of its layers."""
    torch.manual_seed(noise.torch_seed(run.seed, noise.INITIALISE))
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


def train(
    state: State, method: ModuleType, data: dict[str, Split], run: Run, recipe: Recipe
) -> Iterator[State]:
    """Train for ``recipe.epochs``; yields the state after every step.

    The result is ``state.best``: the weights of the last epoch with the best score on the
    validation split (`accuracy`), those of the last epoch, or, without epochs, those it starts
    with. The test split is not read.

    Args:
        state: From `start`, possibly resumed, possibly with a pre-trained encoder.
        method: A module of rrcm/methods/: ``Config`` and ``loss``.
        data: Splits ``train`` and ``validation``.
        run: The run's own constants.
        recipe: How it is trained.

    Raises:
        ConfigError: Devices cannot share a batch.
    """
    constants = parse(run.loss, method.Config, where=f"runs: loss of method {run.method}")
    network = state.modules["classifier"].train()
    network.encoder.recompute = recipe.compute.recompute
    if distributed.world() > 1:
        distributed.synchronise(network)
    called = Computed(network, recipe.compute)
    sigma = torch.tensor(run.sigma, device=network.head.weight.device)
    per_epoch = batches.steps_per_epoch(len(data["train"].labels), batch_size=recipe.batch_size)
    steps = recipe.epochs * per_epoch

    def loss(batch: Batch, draw: Draws) -> dict[str, Tensor]:
        x, y, done = batch.views["image"], batch.labels, batch.step / steps
        found = method.loss(called, x, y, sigma=sigma, draw=draw, done=done, cfg=constants)
        return {run.method: found}

    def keep() -> None:
        draws, seed = recipe.validation_draws, run.seed
        score = accuracy(called, data["validation"], sigma, draws=draws, seed=seed)
        if score >= state.best_score:
            state.best_score = score
            state.best = {k: v.detach().clone() for k, v in network.state_dict().items()}

    if steps == 0:
        keep()
    for _ in loop(
        state,
        mixed(data["train"], run, recipe, start=state.step, stop=steps, device=sigma.device),
        loss,
        network=network,
        steps=steps,
        per_epoch=per_epoch,
        optimizer=recipe.optimizer,
        accumulate=recipe.compute.accumulate,
        seed=run.seed,
    ):
        last = state.step == steps
        if last or (state.step % per_epoch == 0 and recipe.selection == "validation"):
            keep()
        state.took([called], batch_size=recipe.batch_size)
        yield state


def mixed(
    split: Split, run: Run, recipe: Recipe, *, start: int, stop: int, device: torch.device
) -> Iterator[Batch]:
    """Batches of the steps from ``start`` to ``stop``, augmented and mixed; view ``image``."""
    mixer = augment.Mixer(recipe.mix, len(split.classes))
    for batch in loading.batches(
        split,
        {"image": recipe.augment},
        batch_size=recipe.batch_size,
        seed=run.seed,
        start=start,
        stop=stop,
        device=device,
        workers=recipe.compute.workers,
        where=f"recipes.{run.recipe}",
    ):
        first = distributed.rank() * len(batch.labels)
        draw = Draws(run.seed, batch.step, first=first, purpose="mix")
        x, y = mixer(batch.views["image"], batch.labels, draw)
        yield replace(batch, views={"image": x}, labels=y)


@torch.no_grad()
def accuracy(network: nn.Module, split: Split, sigma: Tensor, *, draws: int, seed: int) -> float:
    """Share of noisy copies that ``network`` gets right, over ``draws`` copies of each image.

    The noise is the same at every call, and none of it is ever used in certification. Processes
    share the images; pictures are decoded once, a batch at a time.
    """
    was_training = network.training
    network.eval()
    at_once = max(1, EVALUATION_BATCH // draws)  # images
    right = torch.zeros((), dtype=torch.int64, device=sigma.device)
    parts = torch.arange(len(split.labels)).split(at_once)
    for rows in parts[distributed.rank() :: distributed.world()]:
        x = torch.from_numpy(split.pixels(rows.numpy())).to(sigma.device).repeat(draws, 1, 1, 1)
        labels = torch.from_numpy(split.labels[rows.numpy()]).to(sigma.device).repeat(draws)
        image = rows.to(sigma.device).repeat(draws)
        draw = torch.arange(draws, device=sigma.device).repeat_interleave(len(rows))
        z = noise.gaussian(seed, image, draw, tuple(x.shape[1:]), stream=noise.VALIDATE)
        right += (network(x + sigma * z, sigma).argmax(dim=1) == labels).sum()
    network.train(was_training)
    return distributed.total(right).item() / (draws * len(split.labels))
