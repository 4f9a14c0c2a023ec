"""Training of a classifier at one sigma, by any method, from an encoder or from scratch."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn

from rrcm.config.sections import Model, Recipe, Run
from rrcm.core import progress
from rrcm.core.errors import TrainingError
from rrcm.core.ranges import require
from rrcm.core.schema import listed, parse
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
Noisy = tuple[nn.Module, Tensor]  # a classifier (pixels, sigma) -> scores, and its sigma


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


def taught_by(folder: Path, classes: list[str], device: str) -> tuple[Noisy, dict[str, Any]]:
    """The classifier in ``folder`` as a teacher, and the params that made it.

    Raises:
        CheckpointError: There is none, or it is damaged.
        ConfigError: It is of other ``classes``.
    """
    network, config = classifier.load(folder)
    same, known = config["classes"] == classes, listed(config["classes"])
    require(same, f"start: {folder} knows the classes {known}, not {listed(classes)}")
    return (network.to(device), torch.tensor(config["sigma"], device=device)), config["params"]


def loss_of(
    called: nn.Module, method: ModuleType, run: Run, *, steps: int, kept: dict[str, Tensor]
) -> Loss:
    """The loss of a training of ``steps`` by a module of rrcm/training/methods/.

    Of the ``table`` in ``kept``, if there is one, the method gets the rows of its images.
    """
    constants = parse(run.loss, method.Config, where=f"runs: loss of method {run.method}")
    sigma = torch.tensor(run.sigma, device=next(called.parameters()).device)

    def loss(batch: Batch, draw: Draws) -> dict[str, Tensor]:
        x, y, done = batch.views["image"], batch.labels, batch.step / steps
        told = {"table": kept["table"][batch.rows].to(x)} if "table" in kept else {}
        named = {"sigma": sigma, "draw": draw.of_law(run.noise), "done": done, "cfg": constants}
        value = method.loss(called, x, y, **named, **told)
        return {run.method: value}

    return loss


def train(
    state: State,
    method: ModuleType,
    data: dict[str, Split],
    run: Run,
    recipe: Recipe,
    teacher: Noisy | None = None,
) -> Training:
    """The training of ``state`` for ``recipe.epochs``.

    The result is ``state.best``: the weights after the epoch with the best score on the validation
    split (`accuracy`; ties go to the latest), or after the last epoch, by ``recipe.selection``.
    Without epochs these are the initial weights. The test split is not read.

    ``method`` is a module of rrcm/training/methods/. ``data`` has the splits ``train``, of which
    all labels are used, and ``validation``. A method with a ``table`` needs a ``teacher``.

    Raises:
        ConfigError: The network does not support ``recompute``, or there is no teacher.
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
        loss=loss_of(called, method, run, steps=steps, kept=state.kept),
        before=_keeping(state, (called, sigma), method, split, run, recipe, teacher),
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


def _keeping(
    state: State,
    network: Noisy,
    method: ModuleType,
    split: Split,
    run: Run,
    recipe: Recipe,
    teacher: Noisy | None,
) -> Callable[[], None] | None:
    """What sets ``state.kept`` before an epoch, of a method with a ``table`` or with ``weigh``."""
    asks, weighs = hasattr(method, "table"), hasattr(method, "weigh")
    require(teacher is not None or not asks, f"start: {run.method} learns from a teacher, got none")
    if not (asks or weighs):
        return None
    kept, cfg = state.kept, parse(run.loss, method.Config, where="loss")
    per_epoch = order.steps_per_epoch(len(split.labels), batch_size=recipe.batch_size)

    def frequencies(draws: int) -> Tensor:
        assert teacher
        asked = Computed(teacher[0], recipe.compute), teacher[1]
        counts = votes(
            asked, split, draws=draws, seed=run.seed, stream=streams.STEP, title="teacher"
        )
        return counts / draws

    def before() -> None:
        epoch, late = divmod(state.step, per_epoch)
        if asks and "table" not in kept:
            kept["table"] = method.table(frequencies, cfg)
        if late or not weighs:
            return
        seed, drawn = streams.torch_seed(run.seed, streams.STEP, epoch), 0

        def correct(draws: int, rows: Tensor | None = None) -> Tensor:
            nonlocal drawn
            drawn += draws  # another call has fresh noise
            counts = votes(
                *(network, split, rows), draws=draws, seed=seed, stream=streams.STEP,
                first=drawn - draws, law=run.noise, title=run.method,
            )  # fmt: skip
            return _right(counts, split, rows)

        old = kept.get("weights")
        weights = method.weigh(old, correct, epoch=epoch, epochs=recipe.epochs, cfg=cfg)
        if weights is not None:
            kept["weights"] = weights
            if not weights.sum() > 0:
                raise TrainingError(
                    f"epoch {epoch}: {run.method} leaves out all images, as the network is right "
                    "about none of them often enough; let it begin later, or keep more"
                )

    return before


def accuracy(
    network: nn.Module, split: Split, sigma: Tensor, *, draws: int, seed: int, law: str = ""
) -> float:
    """Accuracy of ``network`` on ``draws`` noisy copies of each image, the same at every call."""
    of, stream = (network, sigma), streams.VALIDATE
    counts = votes(of, split, draws=draws, seed=seed, stream=stream, law=law, title="validation")
    return _right(counts, split).sum().item() / (draws * len(split.labels))


@torch.no_grad()
def votes(
    of: Noisy,
    split: Split,
    rows: Tensor | None = None,
    *,
    draws: int,
    seed: int,
    stream: int,
    first: int = 0,
    law: str = "",
    title: str = "",
) -> Tensor:
    """Noisy copies of images that a classifier puts in each class, int32 [n, K], on the CPU.

    They are ``draws`` of each image, of all or of ``rows``. The noise is a function of (seed, row,
    draw), where draws are numbered from ``first``, and is never used in certification. Processes
    share the images; each image is decoded once. A bar with a ``title`` shows those of process 0.
    """
    network, sigma = of
    rows = torch.arange(len(split.labels)) if rows is None else rows
    at_once, classes = max(1, EVALUATION_BATCH // draws), len(split.classes)
    counts = torch.zeros(len(rows), classes, dtype=torch.int32, device=sigma.device)
    places = [part for part in torch.arange(len(rows)).split(at_once) if len(part)]
    mine = places[distributed.rank() :: distributed.world()]
    with evaluating(network), progress.bar(len(mine), 0, title, " batches", delay=2.0) as bar:
        for place in mine:
            image, place = rows[place].to(sigma.device), place.to(sigma.device)
            x = torch.from_numpy(split.pixels(image.cpu().numpy())).to(sigma.device)
            for draw in torch.arange(first, first + draws).to(image).split(EVALUATION_BATCH):
                shape, images = tuple(x.shape[1:]), image.repeat(len(draw))
                draw = draw.repeat_interleave(len(image))
                z = streams.gaussian(seed, images, draw, shape, stream=stream)
                z = uniform_of(z) if law == "uniform" else z
                found = network(x.repeat(len(draw) // len(x), 1, 1, 1) + sigma * z, sigma)
                chosen = F.one_hot(found.argmax(dim=1), classes)
                counts[place] += chosen.unflatten(0, (-1, len(x))).sum(dim=0)
            if distributed.rank() == 0:
                bar.update()
    return distributed.total(counts).cpu()


def _right(counts: Tensor, split: Split, rows: Tensor | None = None) -> Tensor:
    """Of ``counts`` of images of a split, all or ``rows``, those for their labels, [n]."""
    labels = torch.from_numpy(split.labels)
    return counts.gather(1, (labels if rows is None else labels[rows])[:, None])[:, 0]
