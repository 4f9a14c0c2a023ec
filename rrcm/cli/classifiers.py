"""Which classifier a command means: the interface of its source, and that of files and networks.

A named classifier of a checkout is the other kind of source. Importing this is quick; what opens
classifiers is imported when one is opened.
"""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rrcm.cli.options import Options
from rrcm.config.certification import Sampling
from rrcm.config.foreign import Foreign
from rrcm.core import formats
from rrcm.core.errors import BackendError, ConfigError, DataError, printable
from rrcm.core.files import read_bytes
from rrcm.core.labels import named

if TYPE_CHECKING:  # PyTorch takes seconds
    from rrcm.certification.smoothed import Smoothed
    from rrcm.data.splits.shards import Split


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A smoothed classifier, called ``name``, and the images that it is certified on.

    ``votes`` are files of votes that may answer the same request. For a folder of images, ``files``
    maps an index to its file, and ``left_out`` has a line for each file that was not used.
    ``notes`` are lines to show with the results.
    """

    name: str
    smoothed: "Smoothed"
    split: "Split"
    votes: tuple[Path, ...] = ()
    files: dict[int, str] = dataclasses.field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class ClassifierSource(Protocol):
    """Opens the classifier that a command means."""

    @property
    def name(self) -> str:
        """What to call the classifier."""

    def classifier(self, draws: Sampling, *, max_value: int | None = None) -> "Smoothed":
        """Open it, for pixels whose maximum ``max_value`` is 1.0; without it, for image files.

        Raises:
            RrcmError: It is missing or damaged, or cannot be certified.
        """

    def opened(self, draws: Sampling) -> Opened:
        """Open it and its images.

        Raises:
            RrcmError: One of them is missing or damaged, or they do not fit each other.
        """

    def known_image(self, name: str) -> "Split | None":
        """Return the image of its data with this index, alone; None if the name is no index.

        Raises:
            DataError: There is no such index.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class FromElsewhere:
    """A ``foreign`` classifier, and its images, as in ``options``."""

    foreign: Foreign
    options: Options

    @property
    def name(self) -> str:
        """The stem of the file, or the name of the network."""
        name = str(self.foreign)
        if self.options.checkpoint:
            return self.options.checkpoint[0].name.partition(".")[0]
        if self.options.module:
            file, _, function = name.rpartition(":")
            return f"{Path(file).stem}-{function}"
        return Path(name).stem if self.options.onnx else name

    def classifier(self, draws: Sampling, *, max_value: int | None = None) -> "Smoothed":
        """Open the classifier; pixels are those of image files."""
        from rrcm.certification.smoothed import opened

        try:
            smoothed = opened(self.foreign, draws=draws)
        except BackendError as error:
            text = str(error)
            if text.startswith("classes: "):  # here the file is known
                text = f"--classes {self.options.classes}: {text.removeprefix('classes: ')}"
            raise BackendError(text) from None
        for line in smoothed.backend.notes:
            note(line)
        size = smoothed.backend.fixed or self.foreign.batch or smoothed.draws.batch_size
        draws = dataclasses.replace(smoothed.draws, batch_size=size)
        return dataclasses.replace(smoothed, draws=draws)

    def opened(self, draws: Sampling) -> Opened:
        """Open the classifier and the folder of images."""
        from rrcm.data import duplicates
        from rrcm.data.image_folder import folder

        given = self.options
        if given.images is None:
            raise ConfigError(
                f"--{self.foreign.kind} {self.foreign}: give its images with --images"
            )
        smoothed = self.classifier(draws)
        backend: Any = smoothed.backend  # it also has the normalisation of pixels
        assert smoothed.fit is not None  # every foreign classifier has one
        names = named(backend.classes)
        pictures = folder(
            given.images,
            smoothed.fit,
            classes=names,
            named=given.classes is not None,
            labels=given.labels,
            strict=given.strict,
            natural=backend.natural,
        )
        backend.classes = [*pictures.split.classes, *backend.classes[len(names) :]]
        split = dataclasses.replace(pictures.split, classes=tuple(backend.classes))
        inside = getattr(backend, "inside", backend.normalise)
        return Opened(
            name=printable(f"{self.name}-{given.images.resolve().name}").lstrip("."),
            smoothed=smoothed,
            split=split,
            files=dict(zip(split.idx.tolist(), pictures.files, strict=True)),
            left_out=tuple(pictures.left_out),
            notes=(
                f"inside the function: {inside}, then {printable(str(self.foreign))}",
                f"before the noise: {smoothed.fit}",
                *pictures.passed_over,
                *duplicates.line(duplicates.digests(split), split.labels.tolist()),
            ),
        )

    def known_image(self, name: str) -> None:
        """Return None: its images are files."""


def class_names(path: Path) -> list[str]:
    """Read a file with one class name per line.

    Raises:
        DataError: It is missing, or is not text.
    """
    try:
        lines = read_bytes(path).decode("utf-8-sig").splitlines()
    except DataError as error:
        raise DataError(f"--classes {error}") from None
    except UnicodeDecodeError:
        why = formats.told(path, "not a text file with a name in each line")
        raise DataError(f"--classes {path}: {why}") from None
    return [line.strip() for line in lines if line.strip()]


def note(text: str, *, kind: str = "note") -> None:
    """Print a line on standard error that is neither an error nor a result."""
    print(f"{kind}: {printable(text)}", file=sys.stderr)
