"""The networks that a params.yaml describes, each distinct one counted once."""

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from pipeline.planning import counting
from pipeline.planning.counting import Network
from rrcm.config.params import Params
from rrcm.config.sections import DATA_ONLY, Model
from rrcm.diffusion.training import Blank
from rrcm.models.trained import denoiser as denoisers
from rrcm.models.trained.base import classifier as base


class Called(NamedTuple):
    """What one draw calls: operations, parameters and widest operation of all, a name of one."""

    operations: float
    parameters: int
    widest: float
    name: str


class Networks:
    """Counts networks as they are asked for; ``builders`` make those that were, by name."""

    def __init__(self, whole: Params, *, classes: int) -> None:
        """Of these parameters, for ``classes`` classes."""
        self.whole, self.classes = whole, classes
        self.size = whole.data.channels, whole.data.size, whole.data.size  # (C, H, W)
        self.builders: dict[str, Callable[[], nn.Module]] = {}
        self._found: dict[tuple[str, bool], Network] = {}

    def called(self, name: str) -> Called | None:
        """What one draw calls; None behind an imported denoiser, whose shape is in its file."""
        whole = self.whole
        if name in whole.runs:
            run = whole.runs[name]
            one = self.classifier(run.architecture, run.model)
            label = f"{run.architecture} {run.model}"
            return Called(one.operations, one.parameters, one.widest, label)
        if name in whole.ensembles:
            runs = [whole.runs[run] for run in whole.runs_of(name)]
            several = [self.classifier(run.architecture, run.model) for run in runs]
            return Called(
                sum(each.operations for each in several),
                sum(each.parameters for each in several),
                max(each.widest for each in several),
                f"{runs[0].architecture} {runs[0].model}",
            )
        cfg, behind = whole.purified[name], self.called(whole.purified[name].run)
        folder, _, source = cfg.denoiser.partition("/")
        if folder != "denoisers" or behind is None:
            return None
        trained, calls = whole.denoisers[source], whole.calls(name)
        front = self.denoiser(trained.network, trained.model)
        single = behind.operations / whole.calls(cfg.run)["classifier"]
        return Called(
            calls["denoiser"] * front.operations + calls["classifier"] * single,
            front.parameters + behind.parameters,
            max(front.widest, behind.widest),
            f"{trained.network} {trained.model}",
        )

    def guide(self, guide: str) -> float:
        """Operations of a forward pass of a denoiser's guide."""
        folder, _, name = guide.partition("/")
        if guide == DATA_ONLY:
            return 0.0
        sections = {"represented": self.whole.representations, "models": self.whole.runs}
        entry = sections[folder][name]
        return self.classifier(entry.architecture, entry.model).operations

    def classifier(self, architecture: str, model: str, *, recompute: bool = False) -> Network:
        """Count a classifier of a network of rrcm/models/networks/ and an entry of ``models``."""

        def build() -> nn.Module:
            declared = Model(architecture=architecture, shape=self.whole.models[model])
            return base.build(declared, classes=self.classes, condition="exact", final_norm=False)

        return self._count(f"{architecture} {model}", build, recompute)

    def denoiser(self, network: str, model: str, *, recompute: bool = False) -> Network:
        """Count a network of rrcm/diffusion/networks/ and an entry of ``models``."""

        def build() -> nn.Module:
            shape = self.whole.models[model]
            return Blank(denoisers.network(network, shape, where=f"models.{model}"), shape)

        return self._count(f"{network} {model}", build, recompute)

    def _count(self, name: str, build: Callable[[], nn.Module], recompute: bool) -> Network:
        self.builders.setdefault(name, build)
        if (name, recompute) not in self._found:
            with counting.without_data():
                made = build()
            self._found[name, recompute] = counting.network(made, self.size, recompute=recompute)
        return self._found[name, recompute]
