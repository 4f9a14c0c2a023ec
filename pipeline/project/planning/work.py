"""What each stage of a params.yaml computes, and leaves on the disk."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from torch import nn

from pipeline.project.planning import counting
from pipeline.project.planning.counting import Cost, Network
from pipeline.project.planning.devices import STATED, Gpus, trial
from rrcm.certification.votes.sequential import look_schedule
from rrcm.config.params import Params
from rrcm.config.sections import NONE, Compute, Model
from rrcm.core.errors import ConfigError
from rrcm.core.schema import read_yaml
from rrcm.diffusion.training import Blank
from rrcm.models.trained import denoiser as denoisers
from rrcm.models.trained.base import classifier as base

FLOAT = 4  # bytes
TAR = 512  # bytes of a tar's header, and of the blocks that it is made of
LOOK = 64  # bytes of a look in a file of votes; the digits have 53 to 88


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One stage: its counts; no operations where it takes little, or None where they are unknown.

    ``operations`` are in all, on all ``devices`` (0: all there are), in ``precision``; ``kernels``
    are the operators that each GPU starts one after the other. ``gradients`` are gradient
    evaluations, as provenance counts them. ``draws`` are the most per image; with ``bound`` a
    stopping rule may take fewer. ``disk`` is in bytes. ``network`` is one that is called most.
    """

    name: str = ""
    what: str
    operations: float | None = 0.0
    kernels: float = 0.0
    gradients: float = 0.0
    steps: int = 0
    batch: int = 0
    images: int = 0
    draws: int = 0
    bound: bool = False
    devices: int = 1
    precision: str = "fp32"
    disk: float = 0.0
    network: tuple[str, str] = ("", "")


class Called(NamedTuple):
    """What one draw calls: operations and parameters of all, and one of the networks."""

    operations: float
    parameters: int
    network: tuple[str, str]


class Planned:
    """The stages of one params.yaml, each distinct network counted once."""

    def __init__(self, whole: Params) -> None:
        """Read the sizes of the data set.

        Raises:
            ConfigError: The size of the data set is not known before it is sharded.
        """
        self.whole, name = whole, whole.data.name
        stated = read_yaml(STATED)
        if name not in stated["datasets"]:
            raise ConfigError(
                f"data.name: how many images {name} has is not known here, only of "
                f"{', '.join(stated['datasets'])}; add it to pipeline/project/planning/stated.yaml"
            )
        self.stated, self._data = stated, stated["datasets"][name]
        self.size = whole.data.channels, whole.data.size, whole.data.size  # (C, H, W)
        self._counted: dict[tuple[str, str], Network] = {}
        self._builders: dict[tuple[str, str], Callable[[], nn.Module]] = {}

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
        work: dict[str, Callable[[str], Work]] = {
            "shard": self._shard, "pretrain": self._pretrain, "train": self._train,
            "denoise": self._denoise, "export": self._export, "combine": self._export,
            "purify": self._export, "member": self._member, "represent": self._represent,
            "generate": self._generate, "sample": self._sample,
        }  # fmt: skip
        if group not in work:
            return Work(name=name, what="takes little")
        return replace(work[group](item), name=name)

    def seconds(self, work: Work, gpus: Gpus | None) -> float | None:
        """How long a stage takes alone on ``gpus``, or on this processor; None if unknown.

        Raises:
            ConfigError: It asks for more GPUs than there are.
        """
        if not work.operations:
            return None if work.operations is None else 0.0
        if gpus is None:
            build, training = self._builders[work.network], work.steps > 0
            return work.operations / trial(build, self.size, training=training, batch=work.batch)
        if work.devices > gpus.count:
            raise ConfigError(
                f"{work.name}: compute.devices is {work.devices}, and there are {gpus.count} of "
                f"{gpus.name}"
            )
        peak = gpus.peaks["fp32" if work.precision == "fp32" else "bf16"]
        rate = self.stated["utilisation"] * peak * (work.devices or gpus.count)
        return max(work.operations / rate, work.kernels * self.stated["launch"])

    def classifier(self, architecture: str, model: str) -> Network:
        """Count a classifier of a network of rrcm/models/networks/ and an entry of ``models``."""
        declared = Model(architecture=architecture, shape=self.whole.models[model])
        classes = self._data["classes"]

        def build() -> nn.Module:
            return base.build(declared, classes=classes, condition="exact", final_norm=False)

        return self._count((architecture, model), build)

    def _denoiser(self, network: str, model: str) -> Network:
        shape = self.whole.models[model]

        def build() -> nn.Module:
            return Blank(denoisers.network(network, shape, where=f"models.{model}"), shape)

        return self._count((network, model), build)

    def _count(self, network: tuple[str, str], build: Callable[[], nn.Module]) -> Network:
        if network not in self._counted:
            self._builders[network] = build
            self._counted[network] = counting.network(build, self.size)
        return self._counted[network]

    def _called(self, name: str) -> Called | None:
        """What one draw calls; None behind an imported denoiser, whose shape is in its file."""
        whole = self.whole
        if name not in whole.purified:
            runs = [whole.runs[run] for run in whole.runs_of(name) or [name]]
            each = [self.classifier(run.architecture, run.model) for run in runs]
            return Called(
                sum(network.operations for network in each),
                sum(network.parameters for network in each),
                (runs[0].architecture, runs[0].model),
            )
        cfg, behind = whole.purified[name], self._called(whole.purified[name].run)
        folder, _, source = cfg.denoiser.partition("/")
        if folder != "denoisers" or behind is None:
            return None
        trained, calls = whole.denoisers[source], whole.calls(name)
        front = self._denoiser(trained.network, trained.model)
        single = behind.operations / whole.calls(cfg.run)["classifier"]
        return Called(
            calls["denoiser"] * front.operations + calls["classifier"] * single,
            front.parameters + behind.parameters,
            (trained.network, trained.model),
        )

    def _shard(self, item: str) -> Work:
        count = sum(self.images.values())
        each = self._data.get("bytes", math.prod(self.size) + 128)  # of a NumPy file's header
        tar = 3 * TAR + -(-each // TAR) * TAR
        return Work(what=f"{count:,} images", images=count, disk=count * tar)

    def _pretrain(self, item: str) -> Work:
        cfg = self.whole.pretrain[item]
        cost = counting.pretraining(cfg, self.whole.models[cfg.model], self.size)
        names = (cfg.architecture, cfg.model)
        network = self.classifier(*names)
        return _training(network, names, cost, cfg.compute, steps=cfg.steps, batch=cfg.batch_size)

    def _train(self, item: str) -> Work:
        run = self.whole.runs[item]
        recipe = self.whole.recipes[run.recipe]
        names = (run.architecture, run.model)
        network = self.classifier(*names)
        work = _training(
            network,
            names,
            counting.method(run),
            recipe.compute,
            steps=recipe.epochs * (int(self.images["train"] * recipe.labels) // recipe.batch_size),
            batch=recipe.batch_size,
        )
        checks = recipe.epochs if recipe.selection == "validation" else 1
        checked = checks * recipe.validation_draws * self.images["validation"]
        return replace(work, operations=(work.operations or 0.0) + checked * network.operations)

    def _denoise(self, item: str) -> Work:
        cfg = self.whole.denoisers[item]
        own, guide = counting.denoising(cfg)
        names = (cfg.network, cfg.model)
        network = self._denoiser(*names)
        work = _training(network, names, own, cfg.compute, steps=cfg.steps, batch=cfg.batch_size)
        if cfg.guide == NONE:
            return work
        folder, _, name = cfg.guide.partition("/")
        represented = folder == "represented"
        entry: Any = (self.whole.representations if represented else self.whole.runs)[name]
        each = guide.passes * self.classifier(entry.architecture, entry.model).operations
        guided = cfg.steps * cfg.batch_size * each
        return replace(work, operations=(work.operations or 0.0) + guided)

    def _export(self, item: str) -> Work:
        called = self._called(item)
        if called is None:
            return Work(what="weights and an ONNX file of unknown size")
        files = 1 if item in self.whole.runs else 2  # those combined or purified are weights, too
        what = "an ONNX file" if files == 1 else "weights and an ONNX file"
        return Work(what=what, disk=FLOAT * files * called.parameters)

    def _member(self, item: str) -> Work:
        called = self._called(self.whole.members[item].run)
        return Work(what="a copy of the weights", disk=FLOAT * called.parameters if called else 0.0)

    def _represent(self, item: str) -> Work:
        cfg = self.whole.representations[item]
        train, test = self.images["train"], self.images["test"] * len(cfg.sigmas)
        count = 2 * train + test + 2 * cfg.images  # clean for the probe, and for the scale
        return Work(
            what=f"{count:,} images",
            operations=count * self.classifier(cfg.architecture, cfg.model).operations,
            images=count,
            batch=cfg.batch_size,
            network=(cfg.architecture, cfg.model),
        )

    def _generate(self, item: str) -> Work:
        cfg = self.whole.generations[item]
        folder, _, source = cfg.denoiser.partition("/")
        calls = cfg.steps if cfg.sampler == "dpm_solver" else 2 * cfg.steps - 1
        work = Work(
            what=f"{cfg.images:,} images x {calls} calls",
            operations=None,
            images=cfg.images,
            batch=cfg.batch_size,
            disk=cfg.images * math.prod(self.size),
        )
        if folder != "denoisers":
            return work
        names = self.whole.denoisers[source].network, self.whole.denoisers[source].model
        each = self._denoiser(*names).operations
        return replace(work, operations=cfg.images * calls * each, network=names)

    def _sample(self, item: str) -> Work:
        cfg, called = self.whole.sample, self._called(self.whole.evals[item].run)
        kind, _, number = cfg.subset.partition(":")
        images = self.images[cfg.split]
        if kind != "all":
            images = -(-images // int(number)) if kind == "every" else min(images, int(number))
        draws = cfg.n0 + cfg.n
        return Work(
            what=f"{images:,} images x {draws:,} draws",
            operations=None if called is None else images * draws * called.operations,
            images=images,
            draws=draws,
            batch=cfg.batch_size,
            bound=cfg.stop != "none",
            precision=cfg.precision,
            disk=images * (len(look_schedule(cfg.n)) + 2) * LOOK,
            network=("", "") if called is None else called.network,
        )


def _training(
    network: Network,
    names: tuple[str, str],
    cost: Cost,
    compute: Compute,
    *,
    steps: int,
    batch: int,
) -> Work:
    """The work of ``steps`` steps, each of ``cost`` for each image of a batch."""
    again = cost.trained if compute.recompute else 0.0
    return Work(
        what=f"{steps:,} steps x {batch:,} images",
        operations=steps * batch * (cost.passes + again) * network.operations,
        kernels=steps * compute.accumulate * cost.calls * network.kernels,
        gradients=steps * batch * cost.gradients,
        steps=steps,
        batch=batch,
        devices=compute.devices,
        precision=compute.precision,
        disk=FLOAT * network.parameters,
        network=names,
    )
