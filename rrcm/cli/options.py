"""The options of the commands that query a classifier, each declared once: type, default, help.

Imports nothing heavy, so that `rrcm --help` is quick.
"""

import dataclasses
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from rrcm.config.defaults import DRAWS
from rrcm.core import registry

Command = Callable[..., None]


def _option(text: str, default: Any = None, *, key: str = "", value: Any = None) -> Any:
    """Declare an option by its help text, and a field that is ``value`` without it.

    ``default`` is shown as what holds then, or the setting ``key`` of a checkout.
    """
    shown = f"{default}, or {key} of a checkout" if key else default
    declared = typer.Option(help=text, show_default=False if shown is None else str(shown))
    return dataclasses.field(default=value, metadata={"declared": declared})


def _flag(name: str, text: str) -> Any:
    """Declare an option that takes no value."""
    declared = typer.Option(name, help=text, show_default=False)
    return dataclasses.field(default=False, metadata={"declared": declared})


def _known(kind: str) -> str:
    return ", ".join(registry.names(kind))


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The options of a command as they were typed; None or False where one was left out."""

    sigma: float = _option(
        "Standard deviation of the noise, for pixels in [0, 1].", value=dataclasses.MISSING
    )

    # The classifier.
    model: str | None = _option("Model of a checkout that was trained at --sigma.")
    method: str | None = _option("Training method of --model.", "rrcm")
    eval_sigma: float | None = _option(
        "Noise to smooth --model with, if not that of its training.", "SIGMA"
    )
    onnx: str | None = _option("Any classifier as an ONNX file, instead of --model.")
    timm: str | None = _option("Name of a timm network, instead of --model.")
    module: str | None = _option(
        "A PyTorch network of your own, FILE.py:FUNCTION; this code is executed."
    )
    weights: Path | None = _option("Weights file for --timm.", "timm's pretrained weights")
    checkpoint: list[Path] | None = _option("A foreign checkpoint; several are an ensemble.")
    denoiser: Path | None = _option("Checkpoint of a denoiser in front of --checkpoint.")
    normalise: str | None = _option("Mean and std of --checkpoint, as cifar10.", "as it shows")

    # Images, and their preprocessing for a classifier from elsewhere.
    images: Path | None = _option("Folder of pictures, for a classifier other than --model.")
    labels: Path | None = _option("CSV file of file,label for --images.", "names of their folders")
    strict: bool = _flag("--strict", "Fail if an image cannot be read, instead of leaving it out.")
    classes: Path | None = _option(
        "Text file with a class name per line, in the order of the scores."
    )
    size: str | None = _option("Input size in pixels, as 224 or HxW.", "the network's own")
    channels: int | None = _option(
        "Input channels, 1 or 3, of --module, or an ONNX file that does not fix them.", "3"
    )
    resize: str | None = _option(
        "How images get the input size, before the noise: exact, squash or crop.",
        "the network's own",
    )
    as_stored: bool = _flag(
        "--as-stored",
        "Take pictures as timm and torchvision do, not turned upright by their EXIF data.",
    )
    mean: str | None = _option(
        "Mean of each channel that pixels are normalised by, as .485,.456,.406.",
        "0, or the timm network's own",
    )
    std: str | None = _option(
        "Standard deviation of each channel, as .229,.224,.225.", "1, or the timm network's own"
    )
    output: str | None = _option(
        "Name of the ONNX output that holds the scores.", "the only one of two axes"
    )
    count_nan: bool = _flag(
        "--count-nan",
        "Count noise whose scores are NaN or infinite as votes for no class, not as an error.",
    )

    # The draws.
    batch_size: int | None = _option(
        "Noisy images per batch.", DRAWS.batch_size, key="sample.batch_size"
    )
    n: int | None = _option("Noisy draws per image.", DRAWS.n, key="sample.n")
    n0: int | None = _option(
        "Noisy draws before these, which choose the class.", DRAWS.n0, key="sample.n0"
    )
    alpha: float | None = _option(
        "Failure probability of each certificate.", DRAWS.alpha, key="certify.alpha"
    )
    stop: str | None = _option(
        f"Stopping rule: {_known('stopping')}.", DRAWS.stop, key="sample.stop"
    )
    radii: str | None = _option(
        "Radii to decide, such as 0,0.25,0.5.", "each half sigma in reach", key="report.radii"
    )
    tolerance: float | None = _option(
        "Stop by the rule anytime, when --n draws would add fewer sigmas than this to a radius.",
        "its own",
        key="stopping.anytime.tolerance",
    )
    noise: str | None = _option(
        f"Sampler of the noise: {_known('distributions')}.", DRAWS.noise, key="sample.noise"
    )
    certificate: str | None = _option(
        f"Certificate to report: {_known('certificates')}.",
        DRAWS.certificate,
        key="the first of certify.certificates",
    )
    precision: str | None = _option(
        "Precision of --model: fp32, fp16, int8, bf16, or auto: what is fastest here.",
        "sample.precision",
    )
    allow: str | None = _option(
        "Precisions beside fp32 for --precision auto to choose from, such as int8,bf16.", "none"
    )
    backend: str | None = _option(f"What runs --model: {_known('backends')}.", "sample.backend")
    seed: int | None = _option("Seed of the noise.", "fresh for image files", key="sample.seed")
    split: str | None = _option(
        "Split of the dataset for --model: test, or choice to compare recipes on.", "sample.split"
    )
    subset: str | None = _option(
        "Images to take: all, every:K or first:K.", DRAWS.subset, key="sample.subset"
    )
    budget: str | None = _option(
        "Stop drawing after this time (90s, 10m, 2h); certificates stay valid.", "none"
    )
    shard: str = _option(
        "Draw only share i of k of the images, as i/k; without it the shares are merged.",
        "1/1",
        value="1/1",
    )

    def given(self) -> set[str]:
        """Return the names of the options that were typed."""
        return {name for name in self.__slots__ if getattr(self, name) not in (None, False, [])}


def takes(*, but: Collection[str] = ()) -> Callable[[Command], Command]:
    """Give a command all fields of `Options`, except those in ``but``, as options.

    It is called with the `Options` first.
    """
    declared = [field for field in dataclasses.fields(Options) if field.name not in but]
    every = inspect.signature(Options).parameters
    shared = [
        every[field.name].replace(annotation=Annotated[field.type, field.metadata["declared"]])
        for field in declared
    ]

    def decorated(command: Command) -> Command:
        def _run(**typed: Any) -> None:
            options = Options(**{field.name: typed.pop(field.name) for field in declared})
            command(options, **typed)

        _, *own = inspect.signature(command).parameters.values()
        own = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in own]
        _run.__signature__ = Signature([*shared, *own])  # type: ignore[attr-defined]
        _run.__name__, _run.__doc__ = command.__name__, command.__doc__
        _run.__module__ = command.__module__
        return _run

    return decorated
