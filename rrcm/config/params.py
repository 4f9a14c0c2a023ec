"""The whole of ``params.yaml``: all sections, and checks across them."""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rrcm.config.certification import (
    Certify,
    Ensemble,
    Eval,
    Export,
    Member,
    Purified,
    Report,
    Sample,
    Sampling,
)
from rrcm.config.denoisers import Denoising
from rrcm.config.evaluation import Representation
from rrcm.config.generation import Generation
from rrcm.config.sections import NONE, PARAMS, Data, Pretrain, Recipe, Run
from rrcm.core.errors import ConfigError
from rrcm.core.ranges import require
from rrcm.core.registry import Of, suggest
from rrcm.core.schema import NAME, Name, cast, listed, parse, read_yaml, reading, shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """The whole file; ``stopping`` has the constants of each available stopping rule."""

    data: Data
    models: dict[Name, dict[str, Any]]
    pretrain: dict[Name, Pretrain]
    recipes: dict[Name, Recipe]
    runs: dict[Name, Run]
    denoisers: dict[Name, Denoising]
    ensembles: dict[Name, Ensemble]
    members: dict[Name, Member]
    purified: dict[Name, Purified]
    representations: dict[Name, Representation]
    generations: dict[Name, Generation]
    evals: dict[Name, Eval]
    export: Export
    stopping: dict[Annotated[str, Of("stopping")], dict[str, Any]]
    sample: Sample
    certify: Certify
    report: Report

    def __post_init__(self) -> None:
        n, alpha = self.sample.n, self.certify.alpha
        require(
            alpha ** (1 / n) > 0.5,
            f"sample.n: {n} draws can never certify at certify.alpha = {alpha:g}; at least "
            f"{math.floor(math.log(alpha) / math.log(0.5)) + 1} can",
        )
        require(
            self.sample.split == "test" or self.data.choice > 0,
            "sample.split: data.choice is 0, so that no images are held out for choosing; set "
            "data.choice, then `rrcm repro`",
        )
        rule = self.sample.stop
        constants = self.stopping.get(rule, {})
        if "radii" in constants:  # it decides only these
            where = f"stopping.{rule}.radii"
            known = cast(constants["radii"], list[float], where=where)
            for radius in self.report.radii:
                require(
                    radius in known,
                    f"report.radii: {radius:g} is not in {where} ({listed(known)}); a "
                    "table may show only radii that the rule settles",
                )

    @property
    def sampling(self) -> Sampling:
        """How votes are drawn: ``sample``, for certificates at ``certify.alpha``."""
        return self.sample.at(self.certify.alpha, self.stopping[self.sample.stop])

    def runs_of(self, ensemble: str) -> list[str]:
        """The runs of an ensemble, ordered by ``place``."""
        members = [member for member in self.members.values() if member.ensemble == ensemble]
        return [member.run for member in sorted(members, key=lambda member: member.place)]

    def classifiers(self) -> dict[str, Run]:
        """All classifiers by name, each described as a run: runs, ensembles, purified classifiers.

        An ensemble has the method ``boosting``, the model of its members, or ``ensemble`` if they
        differ, and all else from its first member. A run of method ``rrcm`` that starts from a
        pre-trained encoder has the encoder's objective as its method. A purified classifier has its
        own method and sigma, and all else from the classifier behind the denoiser.
        """
        classifiers = {}
        for name, run in self.runs.items():
            folder, _, start = run.start.partition("/")
            tuned = folder == "pretrained" and run.method == "rrcm"
            method = self.pretrain[start].objective if tuned else run.method
            classifiers[name] = dataclasses.replace(run, method=method)
        for name in self.ensembles:
            members = [self.runs[run] for run in self.runs_of(name)]
            models = {run.model for run in members}
            model = models.pop() if len(models) == 1 else "ensemble"
            classifiers[name] = dataclasses.replace(members[0], model=model, method="boosting")
        for name, cfg in self.purified.items():
            base_run = classifiers[cfg.run]
            classifiers[name] = dataclasses.replace(base_run, method=cfg.method, sigma=cfg.sigma)
        return classifiers

    def maker(self, name: str) -> str:
        """The pipeline stage that writes ``onnx/<name>.onnx`` for a classifier."""
        kind = "combine" if name in self.ensembles else "export"
        return f"{'purify' if name in self.purified else kind}@{name}"


def load(path: Path = PARAMS) -> Params:
    """Read the whole file; check that keys are known, present and typed, and that names exist.

    Parts that belong to components (a method's constants, a network's shape) are mappings here,
    which pipeline/checked.py checks.

    Raises:
        ConfigError: A check fails; one line with the place, the value and the alternatives.
    """
    node = read_yaml(path)
    with reading(path):
        return parsed(node)


def parsed(node: Any) -> Params:
    """The parameters of the contents of a params.yaml, checked as by `load`."""
    params = parse(node, Params, where="")
    _consistent(params)
    return params


def _consistent(params: Params) -> None:
    """Refuse references to names that do not exist."""
    for name, pretrain in params.pretrain.items():
        _refer(pretrain.model, params.models, f"pretrain.{name}.model", "models")
    starts = [NONE, *(f"pretrained/{name}" for name in params.pretrain), *imported()]
    for name, run in params.runs.items():
        _refer(run.model, params.models, f"runs.{name}.model", "models")
        _refer(run.recipe, params.recipes, f"runs.{name}.recipe", "recipes")
        runs = [f"models/{other}" for other in params.runs if other != name]
        _refer(run.start, [*starts, *runs], f"runs.{name}.start", "the starting points")
    _complete(params)
    _denoised(params)
    _probed(params)
    known = params.classifiers()
    for name, evaluation in params.evals.items():
        _refer(evaluation.run, known, f"evals.{name}.run", "the classifiers")
        architecture = known[evaluation.run].architecture
        where = f"evals.{name}.architecture"
        _refer(evaluation.architecture, [architecture], where, f"its run {evaluation.run}")
    _refer(params.sample.stop, params.stopping, "sample.stop", "stopping")


def _complete(params: Params) -> None:
    """Refuse an ensemble that lacks members or has the name of a run."""
    for name, member in params.members.items():
        where = f"members.{name}"
        _refer(member.ensemble, params.ensembles, f"{where}.ensemble", "ensembles")
        _refer(member.run, params.runs, f"{where}.run", "runs")
    for name, ensemble in params.ensembles.items():
        require(name not in params.runs, f"ensembles.{name}: a run has this name")
        got = sorted(m.place for m in params.members.values() if m.ensemble == name)
        require(
            got == [*range(1, ensemble.members + 1)],
            f"ensembles.{name}.members: {ensemble.members} need the places 1 to "
            f"{ensemble.members}, each once, and members have {shown(got)}",
        )


def _denoised(params: Params) -> None:
    """Refuse denoisers, and what is made with them, that refer to names that do not exist."""
    denoiser_artifacts = [*(f"denoisers/{name}" for name in params.denoisers), *imported()]
    encoders = [f"pretrained/{name}" for name in params.pretrain]
    guides = [NONE, *(f"models/{name}" for name in params.runs), *encoders]
    for name, denoiser in params.denoisers.items():
        where = f"denoisers.{name}"
        _refer(denoiser.model, params.models, f"{where}.model", "models")
        starts = [other for other in (NONE, *denoiser_artifacts) if other != f"denoisers/{name}"]
        _refer(denoiser.start, starts, f"{where}.start", "the starting points")
        _refer(denoiser.guide, guides, f"{where}.guide", "what may guide")
        _of_encoders(params, denoiser.architecture, [denoiser.guide], where)
    for name, cfg in params.purified.items():
        where = f"purified.{name}"
        require(name not in {*params.runs, *params.ensembles}, f"{where}: a run has this name")
        # A denoiser may be imported later, as in presets; the stage that reads it checks.
        folder, _, source = cfg.denoiser.partition("/")
        later = [cfg.denoiser] if folder == "imported" and NAME.fullmatch(source) else []
        _refer(cfg.denoiser, [*denoiser_artifacts, *later], f"{where}.denoiser", "the denoisers")
        _refer(cfg.run, {**params.runs, **params.ensembles}, f"{where}.run", "runs and ensembles")
        if folder == "denoisers":
            of = params.denoisers[source]
            _refer(cfg.network, [of.network], f"{where}.network", f"its denoiser {source}")
            require(
                of.guide not in encoders,
                f"{where}.denoiser: {source} is told {of.guide} of clean images; name another",
            )
    for name, made in params.generations.items():
        where = f"generations.{name}"
        _refer(made.denoiser, denoiser_artifacts, f"{where}.denoiser", "the denoisers")
        _refer(made.features, encoders, f"{where}.features", "the pre-trainings")
        folder, _, source = made.denoiser.partition("/")
        if folder == "denoisers":
            of = params.denoisers[source]
            _refer(made.network, [of.network], f"{where}.network", made.denoiser)
            guide = of.guide if of.guide in encoders else NONE
            _refer(made.condition, [guide], f"{where}.condition", f"the guide of {made.denoiser}")
        _of_encoders(params, made.architecture, [made.features, made.condition], where)


def _probed(params: Params) -> None:
    """Refuse evaluations of encoders that do not exist."""
    for name, cfg in params.representations.items():
        where = f"representations.{name}"
        encoders = [f"pretrained/{pretrain}" for pretrain in params.pretrain]
        _refer(cfg.encoder, encoders, f"{where}.encoder", "the pre-trainings")
        pretrain = params.pretrain[cfg.encoder.partition("/")[2]]
        for key in ("architecture", "model"):
            _refer(getattr(cfg, key), [getattr(pretrain, key)], f"{where}.{key}", cfg.encoder)


def _of_encoders(params: Params, architecture: str, paths: list[str], where: str) -> None:
    """Refuse another ``architecture`` than that of the pre-trainings among ``paths``."""
    for name, pretrain in params.pretrain.items():
        if (path := f"pretrained/{name}") in paths:
            _refer(architecture, [pretrain.architecture], f"{where}.architecture", path)


def imported() -> list[str]:
    """Artifacts of `rrcm import`, present or only as DVC pointers, as ``imported/<name>``."""
    found = [p for p in Path("imported").glob("[!.]*") if p.is_dir() or p.suffix == ".dvc"]
    return sorted({p.with_suffix("").as_posix() for p in found})


def _refer(name: str, known: Iterable[str], where: str, section: str) -> None:
    known = list(known)
    if name not in known:
        raise ConfigError(
            f"{where}: {shown(name)} is not in {section} ({listed(known)}).{suggest(name, known)}"
        )
