"""What each stage of a params.yaml computes.

Operations are those of matrix products and convolutions, two per multiply-add, as PyTorch's
FlopCounterMode counts them on networks without weights (its device ``meta``): nothing is computed,
so that a network of any size takes a moment.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.runtime import throughput
from rrcm.certification.sampling.sampler import subset
from rrcm.config.denoisers import Denoising
from rrcm.config.params import Params
from rrcm.config.sections import NONE, Compute, Model, Pretrain, Run
from rrcm.core import registry
from rrcm.core.errors import ConfigError, DataError
from rrcm.core.schema import parse
from rrcm.data.ingest.listing import Contents
from rrcm.data.splits import shards
from rrcm.diffusion import training as denoisers
from rrcm.models.trained import denoiser
from rrcm.models.trained.base import classifier as base
from rrcm.training import finetune, pretrain
from rrcm.training.engine.draws import Draws
from rrcm.training.engine.inputs.loading import Batch

ROWS = 2  # images with which a loss is called
MOMENTS = 20  # of a training, at which it is, where it changes on the way


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One stage: ``what`` it counts, and its operations; None where they are unknown.

    ``operations`` are in all, on all ``devices`` (0: all there are), in ``precision``; with
    ``bound`` a stopping rule may end a sampling earlier.
    """

    what: str
    operations: float | None
    bound: bool = False
    devices: int = 1
    precision: str = "fp32"


def counted(build: Callable[[], nn.Module], size: tuple[int, ...]) -> float:
    """Operations of a forward pass of one image of a network, (pixels [B, *size], sigma)."""
    with torch.device("meta"):
        return throughput.operations(build(), size)


class Passes(nn.Module):
    """Stands for a network in a loss: outputs of its shape, and how many passes were asked for.

    A backward pass counts as two forward passes, as three where activations are recomputed, and as
    one where only the input gets a gradient.
    """

    def __init__(
        self, shape: Callable[..., tuple[int, ...]], compute: Compute | None = None
    ) -> None:
        """``shape`` is that of one output, by the arguments of a call."""
        super().__init__()
        self.shape, self.weight, self.passes = shape, nn.Parameter(torch.ones(())), 0.0
        self.backward = 3 if compute and compute.recompute else 2

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        """An output that depends on ``x`` and on the weight, as that of a network does."""
        shape = self.shape(x, *more)
        y = (self.weight * x.flatten(1).mean(dim=1)).view(-1, *(1 for _ in shape))
        backward = (self.backward if self.training else 1) if y.requires_grad else 0
        self.passes += len(x) * (1 + backward) / ROWS
        return y.expand(-1, *shape)


def _batch(*views: str, size: tuple[int, ...] = (1, 2, 2), step: int = 0) -> Batch:
    images = dict.fromkeys(views, torch.full((ROWS, *size), 0.5))
    rows = torch.arange(ROWS)
    return Batch(step=step, views=images, labels=torch.zeros_like(rows), rows=rows)


def fine_tuning(run: Run, compute: Compute, classes: int) -> float:
    """Passes of the classifier for each image of a step, on average over the training."""
    network, method = Passes(lambda *_: (classes,), compute), registry.load("methods", run.method)
    kept = {"table": torch.full((ROWS, classes), 1 / classes)} if hasattr(method, "table") else {}
    loss = finetune.loss_of(network, method, run, steps=2 * MOMENTS, kept=kept)
    for moment in range(MOMENTS):
        loss(_batch("image", step=2 * moment + 1), Draws(0, 0))
    return network.passes / MOMENTS


def looks(run: Run, *, epochs: int, images: int) -> list[int]:
    """Noisy training images that the run's teacher classifies, and at most that it does itself."""
    method, every, asked = registry.load("methods", run.method), torch.arange(images), [0, 0]
    cfg, weights = parse(run.loss, method.Config, where="loss"), None

    def ask(draws: int, rows: Tensor = every, *, who: int = 1) -> Tensor:
        asked[who] += draws * len(rows)
        return torch.full((len(rows),), draws)

    if hasattr(method, "table"):
        method.table(partial(ask, who=0), cfg)
    for epoch in range(epochs) if hasattr(method, "weigh") else ():
        weights = method.weigh(weights, ask, epoch=epoch, epochs=epochs, cfg=cfg)
    return asked


def denoising(cfg: Denoising, classes: int) -> tuple[float, float]:
    """Passes of the denoiser, and of its guide, for each image of a step."""
    network = Passes(lambda x, *_: x.shape[1:], cfg.compute)
    guide = Passes(lambda *_: (classes,)).eval().requires_grad_(False)
    given = None if cfg.guide == NONE else guide
    denoisers.loss_of(network, given, cfg)(_batch("image"), Draws(0, 0))
    return network.passes, guide.passes


def pretraining(cfg: Pretrain, shape: dict[str, Any], size: tuple[int, ...]) -> float:
    """Passes of the encoder and its averages for each image of a step; heads are not counted."""
    module = registry.load("networks", cfg.architecture)
    declared = parse(shape, module.Config, where=f"models.{cfg.model}")
    with torch.device("meta"):
        encoder = module.Encoder(declared)

    def features(*given: Tensor) -> tuple[int, ...]:
        with torch.no_grad():
            return tuple(encoder(*(tensor.to("meta") for tensor in given)).shape[1:])

    network = Passes(features, cfg.compute)
    online, target = pretrain.networks(network, module, declared, cfg).values()
    pretrain.loss_of(online, target, cfg, {})(_batch(*cfg.augment, size=size), Draws(0, 0))
    called = [network, *target.values()]
    return sum(each.passes for each in called if isinstance(each, Passes))


class Planned:
    """The stages of one params.yaml, each distinct network counted once."""

    def __init__(self, params: Params) -> None:
        self.params = params
        self.classifier, self._denoiser = cache(self._classifier), cache(self._of_denoiser)
        self.size = params.data.channels, params.data.size, params.data.size  # (C, H, W)
        self._data: Contents | None = registry.load("datasets", params.data.name).CONTENTS

    @cached_property
    def images(self) -> dict[str, int]:
        """Images of each split."""
        if self._data is None:
            return {name: index["images"] for name, index in self._indexes.items()}
        data = self.params.data
        held = {"validation": data.validation, "choice": data.choice}
        train = self._data.train - sum(held.values()) - data.test
        return {"train": train, "test": data.test or self._data.test, **held}

    @cached_property
    def classes(self) -> int:
        """The number of classes."""
        return self._data.classes if self._data else len(self._indexes["train"]["classes"])

    @cached_property
    def _indexes(self) -> dict[str, Any]:
        try:
            return {name: shards.read_index(Path("shards", name)) for name in shards.SPLITS}
        except DataError as error:
            raise ConfigError(
                f"data.name: how many images {self.params.data.name} has is known when they have "
                f"been read: {error}"
            ) from None

    def stage(self, name: str) -> Work | None:
        """The work of a stage of dvc.yaml; None if it takes little."""
        group, _, item = name.partition("@")
        work: dict[str, Callable[[str], Work]] = {
            "pretrain": self._pretrain, "train": self._train, "denoise": self._denoise,
            "represent": self._represent, "generate": self._generate, "sample": self._sample,
        }  # fmt: skip
        return work[group](item) if group in work else None

    def _classifier(self, architecture: str, model: str) -> float:
        """Operations of one image's forward pass, of a network shaped by an entry of ``models``."""
        declared = Model(architecture=architecture, shape=self.params.models[model])
        build = partial(base.build, classes=self.classes, condition="exact", final_norm=False)
        return counted(lambda: build(declared), self.size)

    def _of_denoiser(self, name: str) -> float:
        """The same of the network of an entry of ``denoisers``."""
        cfg = self.params.denoisers[name]
        shape, where = self.params.models[cfg.model], f"models.{cfg.model}"
        return counted(lambda: denoiser.network(cfg.network, shape, where=where), self.size)

    def _draw(self, name: str) -> float | None:
        """Operations of one noisy draw of a classifier.

        None behind an imported denoiser, whose shape is in its file.
        """
        params = self.params
        if name not in params.purified:
            runs = [params.runs[run] for run in params.runs_of(name) or [name]]
            return sum(self.classifier(run.architecture, run.model) for run in runs)
        cfg, behind = params.purified[name], self._draw(params.purified[name].run)
        folder, _, source = cfg.denoiser.partition("/")
        if folder != "denoisers" or behind is None:
            return None
        calls = cfg.calls()
        return calls["denoiser"] * self._denoiser(source) + calls["classifier"] * behind

    def _pretrain(self, item: str) -> Work:
        cfg = self.params.pretrain[item]
        passes = pretraining(cfg, self.params.models[cfg.model], self.size)
        network = self.classifier(cfg.architecture, cfg.model)
        return _training(network * passes, cfg.compute, steps=cfg.steps, batch=cfg.batch_size)

    def _train(self, item: str) -> Work:
        run = self.params.runs[item]
        recipe = self.params.recipes[run.recipe]
        network = self.classifier(run.architecture, run.model)
        images = int(self.images["train"] * recipe.labels)
        checks = recipe.epochs if recipe.selection == "validation" else 1
        checked = checks * recipe.validation_draws * self.images["validation"]
        taught, looked = looks(run, epochs=recipe.epochs, images=images)
        _, _, source = run.start.partition("/")
        teacher = self.params.runs.get(source, run)  # the shape of an imported one is like its own
        return _training(
            network * fine_tuning(run, recipe.compute, self.classes),
            recipe.compute,
            steps=recipe.epochs * (images // recipe.batch_size),
            batch=recipe.batch_size,
            beside=(checked + looked) * network
            + taught * self.classifier(teacher.architecture, teacher.model),
        )

    def _denoise(self, item: str) -> Work:
        cfg = self.params.denoisers[item]
        passes, guided = denoising(cfg, self.classes)
        each = passes * self._denoiser(item)
        if cfg.guide != NONE:
            folder, _, source = cfg.guide.partition("/")
            known = self.params.runs if folder == "models" else self.params.pretrain
            each += guided * self.classifier(known[source].architecture, known[source].model)
        return _training(each, cfg.compute, steps=cfg.steps, batch=cfg.batch_size)

    def _represent(self, item: str) -> Work:
        cfg = self.params.representations[item]
        train, test = self.images["train"], self.images["test"] * len(cfg.sigmas)
        clean = train * (1 + cfg.normalised)  # for the probe, and for the units of the distance
        count = clean + test + 2 * cfg.images
        network = self.classifier(cfg.architecture, cfg.model)
        return Work(what=f"{count:,}", operations=count * network)

    def _generate(self, item: str) -> Work:
        cfg = self.params.generations[item]
        pictures = min(cfg.images, self.images["test"]) * (1 if cfg.condition == NONE else 2)
        folder, _, source = cfg.denoiser.partition("/")  # the shape of an imported one is unknown
        called = cfg.steps * self._denoiser(source) if folder == "denoisers" else None
        what, operations = f"{pictures:,} x {cfg.steps}", called and pictures * called
        return Work(what=what, operations=operations)

    def _sample(self, item: str) -> Work:
        cfg, called = self.params.sample, self._draw(self.params.evals[item].run)
        images, draws = len(subset(cfg.subset, self.images[cfg.split])), cfg.n0 + cfg.n
        return Work(
            what=f"{images:,} x {draws:,}",
            operations=None if called is None else images * draws * called,
            bound=cfg.stop != "none",
            precision=cfg.precision,
        )


def _training(
    each: float, compute: Compute, *, steps: int, batch: int, beside: float = 0.0
) -> Work:
    """The work of steps with ``each`` operations an image, and of others ``beside`` them."""
    return Work(
        what=f"{steps:,} x {batch:,}",
        operations=steps * batch * each + beside,
        devices=compute.devices,
        precision=compute.precision,
    )
