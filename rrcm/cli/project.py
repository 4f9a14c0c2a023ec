"""What surrounds a command: a folder of files, or a project that knows classifiers by name."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rrcm.cli import requests
from rrcm.cli.classifiers import ClassifierSource
from rrcm.cli.options import Options
from rrcm.cli.requests import Request, Settings
from rrcm.core.errors import ConfigError, DataError

if TYPE_CHECKING:  # pandas takes a while
    from rrcm.analysis.entries import Entry
    from rrcm.certification.votes.records import Header


OK, ABSENT, WRONG = "ok", "--", "!!"  # marks of what `rrcm doctor` finds
Finding = tuple[str, str]  # a mark, and the text


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


class Project:
    """What commands ask of their surroundings; by itself a folder of files, without a project."""

    def request(self, options: Options) -> Request:
        """Return what the options of a command ask for here.

        Raises:
            ConfigError: No such classifier, options that contradict each other, or settings under
                which nothing could be certified.
            BackendError: The classifier has not been trained and exported here; the message says
                how to get it.
            DataError: There is no such folder of images.
        """
        source = requests.foreign(options) or self.classifier(options)
        request = requests.resolve(options, source, self.settings())
        self.require(request)
        return request

    def settings(self) -> Settings:
        """Return what holds where options say nothing.

        Raises:
            ConfigError: It is invalid.
        """
        return Settings()

    def require(self, request: Request) -> None:
        """Refuse a request whose settings, some of them from options, contradict each other."""

    def classifier(self, options: Options) -> ClassifierSource:
        """Return the classifier that --model names; may change the current folder.

        Raises:
            RrcmError: There is none, or it is not here.
        """
        raise ConfigError(
            "--model: names a classifier of a checkout, and rrcm runs outside of one; give a file "
            "by --onnx, or a network by --timm"
        )

    def described(self, header: "Header") -> Described:
        """Describe the classifier of votes."""
        return Described(method=header.run)

    def evaluation(self, name: str) -> "Entry":
        """Return the certificates of an evaluation by name.

        Raises:
            RrcmError: There are none.
        """
        raise DataError(f"{name}: no such file")

    def remarks(self, entries: Sequence["Entry"]) -> list[str]:
        """Return a line for each group of entries that are out of date."""
        return []

    def report(self, *, only: Sequence[str], out: Path | None) -> str:
        """Return the table of its evaluations, and write its page to ``out``, if given."""
        raise ConfigError("rrcm report: give FILES; without them it reports on a checkout")

    def findings(self) -> list[Finding]:
        """Return what `rrcm doctor` says of it."""
        return []
