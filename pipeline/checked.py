"""Loads params.yaml for every command and stage, checked as a whole, components included.

`params.load` checks the sections that rrcm/config/ declares, and that components exist. A network's
shape, the constants of a method, an objective, a purifier or a stopping rule, and augmentations are
checked here against the ``Config`` of their component, so that a mistake in the last stage is found
before the first one starts. Importing components is slow, and a stage may take only a second. So a
file that was found valid is not checked again until it or the library changes.
"""

import hashlib
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from rrcm.config import params
from rrcm.config.certification import require_law
from rrcm.config.params import Params
from rrcm.config.sections import NONE, PARAMS
from rrcm.core import registry
from rrcm.core.errors import CertificateError, ConfigError
from rrcm.core.files import read_bytes, write_text
from rrcm.core.ranges import require
from rrcm.core.schema import listed, parse, reading

VALID = Path(".rrcm/checked")  # the digest of a file and library that were found valid


def load() -> Params:
    """Load params.yaml of the current folder, after a check of all its sections.

    Raises:
        ConfigError: It is not valid; names the dotted place, the value, and the way out.
    """
    digest = _digest()  # before reading the file: an edit made meanwhile is checked next time
    whole = params.load()
    if not (VALID.is_file() and VALID.read_bytes() == digest.encode()):
        check(whole)
        with suppress(OSError):  # a read-only checkout
            write_text(VALID, digest)
    return whole


def _digest() -> str:
    """Return the SHA-256 of params.yaml and of the code that reads it."""
    library, found = sorted(registry.LIBRARY.rglob("*.py")), hashlib.sha256()
    for file in [PARAMS, Path(__file__), *library] if PARAMS.exists() else []:
        found.update(f"{file.name} {file.stat().st_size} ".encode() + read_bytes(file))
    return found.hexdigest()


def check(whole: Params) -> None:
    """Refuse every value that a component would refuse when its stage starts.

    Networks are not built, and no data are read. Imports the components that ``whole`` names,
    PyTorch with them.

    Raises:
        ConfigError: Names the dotted place, the value, and the alternatives.
    """
    with reading(PARAMS):
        _encoders(whole)
        _classifiers(whole)
        for name, cfg in whole.denoisers.items():
            where, shape = f"denoisers.{name}", whole.models[cfg.model]
            _constants("denoiser_networks", cfg.network, shape, where=f"models.{cfg.model}")
            _constants("denoiser_objectives", cfg.objective, cfg.loss, where=f"{where}.loss")
            _augmentations(cfg.augment, where=f"{where}.augment")
        for name, one in whole.purified.items():
            _constants("purifiers", one.purifier, one.purify, where=f"purified.{name}.purify")
        for rule, constants in whole.stopping.items():
            _constants("stopping", rule, constants, where=f"stopping.{rule}")
        _served(whole)


def _constants(kind: str, name: str, node: Any, *, where: str) -> ModuleType:
    """Return a component; refuse ``node``, found at ``where``, if it is no ``Config`` of it."""
    module = registry.load(kind, name)
    parse(node, module.Config, where=where)
    return module


def _augmentations(declared: list[Any], *, where: str) -> None:
    from rrcm.training.engine.inputs import augment  # with PyTorch and timm

    augment.build(declared, where=where)


def _encoders(whole: Params) -> None:
    for name, cfg in whole.pretrain.items():
        where, shape = f"pretrain.{name}", whole.models[cfg.model]
        _constants("networks", cfg.architecture, shape, where=f"models.{cfg.model}")
        objective = _constants("objectives", cfg.objective, cfg.loss, where=f"{where}.loss")
        require(
            cfg.augment.keys() == {*objective.VIEWS},
            f"{where}.augment: {cfg.objective} asks for the views "
            f"{', '.join(objective.VIEWS)}; got {listed(cfg.augment) or 'none'}",
        )
        for view, declared in cfg.augment.items():
            _augmentations(declared, where=f"{where}.augment.{view}")


def _classifiers(whole: Params) -> None:
    for name, recipe in whole.recipes.items():
        _augmentations(recipe.augment, where=f"recipes.{name}.augment")
    for name, run in whole.runs.items():
        where, shape = f"runs.{name}", whole.models[run.model]
        _constants("networks", run.architecture, shape, where=f"models.{run.model}")
        method = _constants("methods", run.method, run.loss, where=f"{where}.loss")
        require(
            run.start != NONE or not method.PRETRAINED,
            f"{where}.start: {run.method} starts from a pre-trained encoder, got {run.start}",
        )
        asks, mix = hasattr(method, "table"), whole.recipes[run.recipe].mix
        require(
            run.start.startswith(("models/", "imported/")) or not asks,
            f"{where}.start: {run.method} learns from a classifier, models/<run>, got {run.start}",
        )
        require(
            not (asks and (mix.mixup or mix.cutmix)),
            f"recipes.{run.recipe}.mix: {run.method} cannot mix images; set mixup, cutmix to 0",
        )


def _served(whole: Params) -> None:
    """Refuse a stopping rule that cannot serve a certificate, and draws that certify nothing."""
    # NumPy with it; a valid file needs neither
    from rrcm.certification.votes.counts import Claim, require_enough

    cfg = whole.sampling
    module = registry.load("stopping", cfg.stop)
    certificate = registry.load("certificates", cfg.certificate)
    constants = parse(whole.stopping[cfg.stop], module.Config, where=f"stopping.{cfg.stop}")
    claim = Claim(certificate=certificate, sigma=1.0, alpha=cfg.alpha)
    try:
        rule = module.Rule(constants, n=cfg.n, claim=claim)
    except ConfigError as error:
        raise ConfigError(f"stopping.{cfg.stop}.{error}") from None
    for name in whole.certify.certificates:
        try:
            require_law(name, cfg.noise)
            asked = registry.load("certificates", name)
            require_enough(asked, rule, alpha=whole.certify.alpha)
        except CertificateError as error:
            raise ConfigError(f"certify.certificates: {error}") from None
