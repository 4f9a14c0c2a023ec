"""The interface of a sink, how one is found by its file name, and what several share."""

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from pipeline.tracking.trainings import Identity
from rrcm.core.errors import ConfigError
from rrcm.core.registry import suggest

SINKS = Path(__file__).with_name("sinks")


class Run(Protocol):
    """A training in a sink."""

    def scalars(self, step: int, values: Mapping[str, float]) -> bool:
        """Send values of a step, in the order of steps; returns whether the sink lacked any."""

    def flush(self) -> None:
        """Send what waits to be sent."""

    def end(self, summary: Mapping[str, float]) -> None:
        """Send the results; the training has ended."""

    def close(self) -> None:
        """Send what waits and release everything; called once, with or without `end`."""


class Sink(Protocol):
    """Where trainings go: ``place`` says where, and ``shown`` how to look at it.

    A file of sinks/ has the class ``Sink(to)``, which takes the value of ``--to``, and ``ERRORS``,
    the exceptions of its library that a user can mend.
    """

    place: Path | str
    shown: str

    def begin(self, identity: Identity, parameters: Mapping[str, Any]) -> Run:
        """Begin a training, or find it again, and send its parameters, nested by section.

        Guarantee: a training is one run of the sink, however often it is sent.
        """


def names() -> list[str]:
    """The sinks, by file name."""
    return sorted(file.name for file in pkgutil.iter_modules([str(SINKS)]))


def load(name: str) -> tuple[type[Sink], tuple[type[Exception], ...]]:
    """The class of a sink, and the exceptions that a user can mend.

    Raises:
        ConfigError: There is no such sink; the error lists the existing ones.
        ModuleNotFoundError: Its package is not installed.
    """
    if name not in (known := names()):
        raise ConfigError(
            f"pipeline/tracking/sinks/ has no {name!r}, only {', '.join(known)}."
            f"{suggest(name, known)}"
        )
    module = importlib.import_module(f"pipeline.tracking.sinks.{name}")
    return cast(type[Sink], module.Sink), module.ERRORS


def folder(to: str, sink: str) -> Path:
    """The value of ``--to`` as a folder.

    Raises:
        ConfigError: It is an address.
    """
    if "://" in to:
        raise ConfigError(f"--to {to}: {sink} writes to a folder, and this is an address")
    return Path(to)


def flat(parameters: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, ``{"recipes.epochs": 3}``."""
    found: dict[str, Any] = {}
    for key, value in parameters.items():
        inner = isinstance(value, Mapping)
        found |= flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found
