"""What each stage of a params.yaml computes, keeps in memory and leaves on the disk."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.planning import counting
from pipeline.planning.counting import FLOAT, Cost, Network
from pipeline.planning.networks import Networks
from rrcm.certification.votes.sequential import look_schedule
from rrcm.config.params import Params
from rrcm.config.sections import Compute, Optimizer
from rrcm.core.errors import ConfigError
from rrcm.core.schema import read_yaml

STATED = Path(__file__).with_name("stated.yaml")
TAR = 512  # bytes of a tar's header, and of the blocks that it is made of
LOOK = 64  # bytes of a look in a file of votes; the digits have 53 to 88


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One stage: its counts; None where nothing is counted, because it takes little or is unknown.

    ``operations`` are in all, on all devices; ``gradients`` are the forward passes of one image
    that a backward pass follows, as provenance counts them. ``draws`` are the most per image; with
    ``bound`` a stopping rule may take fewer, so that operations are an upper bound. ``devices`` are
    those that it uses, 0 for all, in ``precision``. On each device are ``weights`` and what belongs
    to them, in bytes, and a share of ``activations``. ``disk`` is in bytes for good, ``scratch``
    until the stage ends. ``kernels`` are the operators that a GPU starts, on each. ``timed``
    decides its speed: ``train`` or ``vote``, and a name of `Networks.builders`.
    """

    name: str
    what: str
    operations: float | None = None
    steps: int = 0
    batch: int = 0
    gradients: float = 0.0
    images: int = 0
    draws: int = 0
    bound: bool = False
    devices: int = 1
    precision: str = "fp32"
    weights: float = 0.0
    activations: float = 0.0
    disk: float | None = None
    scratch: float = 0.0
    kernels: float = 0.0
    timed: tuple[str, str] = ("", "")

    def memory(self, devices: int) -> float | None:
        """Bytes on each of ``devices``: weights and what belongs to them, and activations."""
        return self.weights + self.activations / devices if self.weights else None


class Planned:
    """The stages of one params.yaml, each distinct network counted once."""

    def __init__(self, whole: Params) -> None:
        """Read the sizes of the data set.

        Raises:
            ConfigError: The size of the data set is not known before it is sharded.
        """
        self.whole = whole
        known = read_yaml(STATED)["datasets"]
        name = whole.data.name
        if name not in known:
            raise ConfigError(
                f"data.name: how many images {name} has is not known here, only of "
                f"{', '.join(known)}; add it to {STATED.name} of pipeline/planning/"
            )
        self._data: dict[str, Any] = known[name]
        self.networks = Networks(whole, classes=self._data["classes"])

    @cached_property
    def images(self) -> dict[str, int]:
        """Images of each split."""
        data = self.whole.data
        held = {"validation": data.validation, "choice": data.choice}
        test = data.test or self._data["test"]
        return {"train": self._data["train"] - sum(held.values()) - data.test, "test": test, **held}

    def stage(self, name: str) -> Work:
        """The work of a stage of dvc.yaml."""
        group, _, item = name.partition("@")
        made = {
            "shard": self._shard,
            "pretrain": self._pretrain,
            "train": self._train,
            "denoise": self._denoise,
            "export": self._export,
            "combine": self._export,
            "purify": self._export,
            "member": self._member,
            "represent": self._represent,
            "generate": self._generate,
            "sample": self._sample,
        }
        if group not in made:
            return Work(name=name, what="takes little")
        return replace(made[group](item), name=name)

    def _shard(self, item: str) -> Work:
        count = sum(self.images.values())
        pixels = math.prod(self.networks.size) + 128  # of a NumPy file's header
        each = 3 * TAR + _blocks(self._data.get("bytes", pixels))
        return Work(name="", what=f"{count:,} images", images=count, disk=count * each)

    def _pretrain(self, item: str) -> Work:
        cfg = self.whole.pretrain[item]
        cost = counting.pretraining(cfg, self.whole.models[cfg.model], self.networks.size)
        found = self.networks.classifier(
            cfg.architecture, cfg.model, recompute=cfg.compute.recompute
        )
        passes = cost.passes + (cost.encoder.trained if cfg.compute.recompute else 0)
        moments = _moments(cfg.optimizer)
        return Work(
            name="",
            what=f"{cfg.steps:,} steps x {cfg.batch_size:,} images",
            operations=cfg.steps * cfg.batch_size * passes * found.operations,
            steps=cfg.steps,
            batch=cfg.batch_size,
            gradients=cfg.steps * cfg.batch_size * cost.encoder.gradients,
            devices=cfg.compute.devices,
            precision=cfg.compute.precision,
            weights=FLOAT * ((2 + moments) * cost.trained + cost.followers),
            activations=_activations(found, cost.encoder, cfg.batch_size, cfg.compute),
            disk=FLOAT * found.parameters,
            scratch=FLOAT * ((1 + moments) * cost.trained + cost.followers),
            kernels=cfg.steps * cfg.compute.accumulate * cost.calls * found.kernels,
            timed=("train", f"{cfg.architecture} {cfg.model}"),
        )

    def _train(self, item: str) -> Work:
        run = self.whole.runs[item]
        recipe = self.whole.recipes[run.recipe]
        found = self.networks.classifier(
            run.architecture, run.model, recompute=recipe.compute.recompute
        )
        cost = counting.method(run)
        images = int(self.images["train"] * recipe.labels)
        per_epoch = images // recipe.batch_size
        steps = recipe.epochs * per_epoch
        passes = cost.passes + (cost.trained if recipe.compute.recompute else 0)
        checks = recipe.epochs if recipe.selection == "validation" else 1
        checked = checks * recipe.validation_draws * self.images["validation"]
        moments = _moments(recipe.optimizer)
        return Work(
            name="",
            what=f"{steps:,} steps x {recipe.batch_size:,} images",
            operations=(steps * recipe.batch_size * passes + checked) * found.operations,
            steps=steps,
            batch=recipe.batch_size,
            gradients=steps * recipe.batch_size * cost.gradients,
            devices=recipe.compute.devices,
            precision=recipe.compute.precision,
            weights=FLOAT * (3 + moments) * found.parameters,  # and the best so far
            activations=_activations(found, cost, recipe.batch_size, recipe.compute),
            disk=FLOAT * found.parameters,
            scratch=FLOAT * (2 + moments) * found.parameters,
            kernels=steps * recipe.compute.accumulate * cost.calls * found.kernels,
            timed=("train", f"{run.architecture} {run.model}"),
        )

    def _denoise(self, item: str) -> Work:
        cfg = self.whole.denoisers[item]
        own, guide = counting.denoising(cfg)
        found = self.networks.denoiser(cfg.network, cfg.model, recompute=cfg.compute.recompute)
        guided = self.networks.guide(cfg.guide) * guide.passes
        again = own.trained if cfg.compute.recompute else 0
        per_image = (own.passes + again) * found.operations + guided
        moments = _moments(cfg.optimizer)
        copies = 2 if cfg.ema else 1
        return Work(
            name="",
            what=f"{cfg.steps:,} steps x {cfg.batch_size:,} images",
            operations=cfg.steps * cfg.batch_size * per_image,
            steps=cfg.steps,
            batch=cfg.batch_size,
            gradients=cfg.steps * cfg.batch_size * own.gradients,
            devices=cfg.compute.devices,
            precision=cfg.compute.precision,
            weights=FLOAT * (1 + moments + copies) * found.parameters,
            activations=_activations(found, own, cfg.batch_size, cfg.compute),
            disk=FLOAT * found.parameters,
            scratch=FLOAT * (moments + copies) * found.parameters,
            kernels=cfg.steps * cfg.compute.accumulate * own.calls * found.kernels,
            timed=("train", f"{cfg.network} {cfg.model}"),
        )

    def _export(self, item: str) -> Work:
        called = self.networks.called(item)
        if called is None:
            return Work(name="", what="weights and an ONNX file of unknown size")
        files = 1 if item in self.whole.runs else 2  # those combined or purified are weights, too
        what = "an ONNX file" if files == 1 else "weights and an ONNX file"
        return Work(name="", what=what, disk=FLOAT * files * called.parameters)

    def _member(self, item: str) -> Work:
        run = self.whole.runs[self.whole.members[item].run]
        disk = FLOAT * self.networks.classifier(run.architecture, run.model).parameters
        return Work(name="", what="a copy of the weights", disk=disk)

    def _represent(self, item: str) -> Work:
        cfg = self.whole.representations[item]
        found = self.networks.classifier(cfg.architecture, cfg.model)
        train, test = self.images["train"], self.images["test"] * len(cfg.sigmas)
        count = 2 * train + test + 2 * cfg.images  # clean for the probe, and for the scale
        return Work(
            name="",
            what=f"{count:,} images",
            operations=count * found.operations,
            images=count,
            batch=cfg.batch_size,
            weights=FLOAT * found.parameters,
            activations=cfg.batch_size * found.widest,
            timed=("vote", f"{cfg.architecture} {cfg.model}"),
        )

    def _generate(self, item: str) -> Work:
        cfg = self.whole.generations[item]
        folder, _, source = cfg.denoiser.partition("/")
        calls = cfg.steps if cfg.sampler == "dpm_solver" else 2 * cfg.steps - 1
        what = f"{cfg.images:,} images x {calls} calls"
        if folder != "denoisers":
            return Work(name="", what=what)
        trained = self.whole.denoisers[source]
        found = self.networks.denoiser(trained.network, trained.model)
        return Work(
            name="",
            what=what,
            operations=cfg.images * calls * found.operations,
            images=cfg.images,
            batch=cfg.batch_size,
            weights=FLOAT * found.parameters,
            activations=cfg.batch_size * found.widest,
            disk=cfg.images * math.prod(self.networks.size),
            timed=("vote", f"{trained.network} {trained.model}"),
        )

    def _sample(self, item: str) -> Work:
        cfg, called = self.whole.sample, self.networks.called(self.whole.evals[item].run)
        images = _subset(cfg.subset, self.images[cfg.split])
        draws = cfg.n0 + cfg.n + 2 * cfg.paired  # a paired draw goes through two functions
        found = Work(
            name="",
            what=f"{images:,} images x {draws:,} draws",
            images=images,
            draws=draws,
            batch=cfg.batch_size,
            bound=cfg.stop != "none" or cfg.label_aware,
            precision=cfg.precision,
            disk=images * (len(look_schedule(cfg.n)) + 2) * LOOK,
        )
        if called is None:
            return found
        return replace(
            found,
            operations=images * draws * called.operations,
            weights=FLOAT * called.parameters,
            activations=cfg.batch_size * called.widest,
            timed=("vote", called.name),
        )


def _blocks(size: int) -> int:
    """Bytes that a tar takes for a file of ``size`` bytes."""
    return -(-size // TAR) * TAR


def _subset(subset: str, images: int) -> int:
    """How many of ``images`` a ``sample.subset`` has."""
    kind, _, number = subset.partition(":")
    if kind == "all":
        return images
    return -(-images // int(number)) if kind == "every" else min(images, int(number))


def _moments(optimizer: Optimizer) -> int:
    """Numbers that an optimizer keeps for each parameter."""
    return 2 if optimizer.algorithm == "adamw" else int(optimizer.momentum > 0)


def _activations(found: Network, cost: Cost, batch_size: int, compute: Compute) -> float:
    """Bytes on all devices together that a step keeps for its backward pass."""
    narrow = 0.5 if compute.precision == "bf16" else 1.0
    return narrow * found.saved * cost.alive * batch_size / compute.accumulate
