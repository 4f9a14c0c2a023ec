"""What surrounds a command: a folder of files, or a project that knows classifiers by name."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rrcm.cli.classifiers import ClassifierSource
from rrcm.cli.options import Options
from rrcm.config import defaults
from rrcm.config.certification import Certify, Report, Sampling
from rrcm.core.errors import ConfigError, DataError

if TYPE_CHECKING:  # pandas takes a while
    from rrcm.analysis.entries import Entry
    from rrcm.certification.votes.records import Header


OK, ABSENT, WRONG = "ok", "--", "!!"  # marks of what `rrcm doctor` finds
Finding = tuple[str, str]  # a mark, and the text


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What the options of a command leave open; ``stopping`` has the constants of each rule."""

    sample: Sampling = defaults.DRAWS
    stopping: dict[str, dict[str, Any]] = field(default_factory=defaults.STOPPING.copy)
    certify: Certify = defaults.CERTIFY
    report: Report = defaults.REPORT


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """A classifier, described by its own record; without a record, ``method`` is its name.

    ``sigma`` is the noise of its training, and ``stale`` are its differences from what the project
    says of it now, one string each.
    """

    model: str = ""
    method: str
    sigma: float | None = None
    seed: int | None = None
    stale: tuple[str, ...] = ()


class Project(Protocol):
    """What commands ask of their surroundings."""

    name: str  # of the file that has the settings

    def settings(self) -> Settings | None:
        """Return its settings; None if there are none here.

        Raises:
            ConfigError: They are invalid.
        """

    def require(self, settings: Settings) -> None:
        """Refuse settings, some of them from options, that contradict each other.

        Raises:
            ConfigError: They do.
        """

    def classifier(self, options: Options) -> ClassifierSource:
        """Return the classifier that --model names; may change the current folder.

        Raises:
            RrcmError: There is none, or it is not here.
        """

    def described(self, header: "Header") -> Described:
        """Describe the classifier of votes."""

    def evaluation(self, name: str) -> "Entry":
        """Return the certificates of an evaluation by name.

        Raises:
            RrcmError: There are none.
        """

    def remarks(self, entries: Sequence["Entry"]) -> list[str]:
        """Return a line for each group of entries that are out of date."""

    def report(self, *, only: Sequence[str], out: Path | None) -> str:
        """Return the table of its evaluations, and write its page to ``out``, if given."""

    def findings(self) -> list[Finding]:
        """Return what `rrcm doctor` says of it."""


class Files:
    """No project: files alone."""

    name = ""

    def settings(self) -> Settings | None:
        """Return None."""
        return None

    def require(self, settings: Settings) -> None:
        """Refuse nothing."""

    def classifier(self, options: Options) -> ClassifierSource:
        """Refuse --model."""
        raise ConfigError(
            "--model: names a classifier of a checkout, and rrcm runs outside of one; give a file "
            "by --onnx, or a network by --timm"
        )

    def described(self, header: "Header") -> Described:
        """Return the name that the votes have."""
        return Described(method=header.run)

    def evaluation(self, name: str) -> "Entry":
        """Refuse what is no file."""
        raise DataError(f"{name}: no such file")

    def remarks(self, entries: Sequence["Entry"]) -> list[str]:
        """Return no lines."""
        return []

    def report(self, *, only: Sequence[str], out: Path | None) -> str:
        """Refuse a report without files."""
        raise ConfigError("rrcm report: give FILES; without them it reports on a checkout")

    def findings(self) -> list[Finding]:
        """Return nothing."""
        return []
