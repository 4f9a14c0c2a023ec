"""Training of a classifier for one sigma, by any method, from a pre-trained encoder or scratch."""

from collections.abc import Iterator
from types import ModuleType

import torch
from torch import Tensor

import rrcm.models._torchvision  # noqa: F401 (timm imports torchvision)
from rrcm import augment, batches, classifier, noise
from rrcm.classifier import Classifier
from rrcm.config import Model, Recipe, Run
from rrcm.loop import State
from rrcm.loop import train as loop
from rrcm.parsing import parse
from rrcm.shards import Split

from timm.optim import param_groups_layer_decay  # isort: skip (after _torchvision)

EVALUATION_BATCH = 512


def start(run: Run, recipe: Recipe, model: Model, *, classes: int, device: str = "cpu") -> State:
    """The state before the first step: an untrained classifier, and AdamW with layer decay."""
    torch.manual_seed(noise.torch_seed(run.seed, noise.INITIALISE))
    network = classifier.build(model, classes=classes, condition=recipe.condition).to(device)
    network.head.requires_grad_(recipe.head == "trainable")
    groups = param_groups_layer_decay(
        network,
        weight_decay=recipe.optimizer.weight_decay,
        no_weight_decay_list=("encoder.cls_token", "encoder.pos_embed"),
        layer_decay=recipe.layer_decay,
    )
    return State(modules={"classifier": network}, optimizer=torch.optim.AdamW(groups, fused=True))


def train(
    state: State,
    method: ModuleType,
    data: dict[str, Split],
    run: Run,
    recipe: Recipe,
) -> Iterator[State]:
    """Train for ``recipe.epochs``; yields the state after every step.

    After each epoch the classifier is scored on the validation split (`accuracy`); the result is
    ``state.best``, the weights of the last epoch with the best score. The test split is not read.

    Args:
        state: From `start`, possibly resumed, possibly with a pre-trained encoder.
        method: A module of rrcm/methods/: ``Config`` and ``loss``.
        data: Splits ``train`` and ``validation``.
        run: The run's own constants.
        recipe: How it is trained.
    """
    constants = parse(run.loss, method.Config, where=f"runs: loss of method {run.method}")
    transform = augment.build(recipe.augment, where="recipes: augment")
    network = state.modules["classifier"].train()
    device = network.head.weight.device
    pixels = torch.from_numpy(data["train"].pixels()).to(device)
    labels = torch.from_numpy(data["train"].labels).to(device)
    sigma = torch.tensor(run.sigma, device=device)
    per_epoch = batches.steps_per_epoch(len(pixels), batch_size=recipe.batch_size)

    def loss(step: int) -> dict[str, Tensor]:
        rows = batches.rows(step, images=len(pixels), batch_size=recipe.batch_size, seed=run.seed)
        x = transform(pixels[rows])
        return {run.method: method.loss(network, x, labels[rows], sigma=sigma, cfg=constants)}

    steps = recipe.epochs * per_epoch
    for _ in loop(state, loss, steps=steps, optimizer=recipe.optimizer, seed=run.seed):
        if state.step % per_epoch == 0:
            score = accuracy(
                network, data["validation"], sigma, draws=recipe.validation_draws, seed=run.seed
            )
            if score >= state.best_score:
                state.best_score = score
                state.best = {k: v.detach().clone() for k, v in network.state_dict().items()}
        yield state


@torch.no_grad()
def accuracy(network: Classifier, split: Split, sigma: Tensor, *, draws: int, seed: int) -> float:
    """Share of noisy copies that ``network`` gets right, over ``draws`` copies of each image.

    The noise is the same at every call, and none of it is ever used in certification.
    """
    was_training = network.training
    network.eval()
    pixels, labels = torch.from_numpy(split.pixels()), torch.from_numpy(split.labels)
    image = torch.arange(len(pixels)).repeat(draws)
    draw = torch.arange(draws).repeat_interleave(len(pixels))
    right = 0
    for rows, these in zip(
        image.split(EVALUATION_BATCH), draw.split(EVALUATION_BATCH), strict=True
    ):
        z = noise.gaussian(seed, rows, these, tuple(pixels.shape[1:]), stream=noise.VALIDATE)
        x = (pixels[rows].to(sigma.device)) + sigma * z.to(sigma.device)
        right += int((network(x, sigma).argmax(dim=1).cpu() == labels[rows]).sum())
    network.train(was_training)
    return right / (draws * len(pixels))
