"""The options of the commands that query a classifier: their help, and the typed values.

Imports nothing heavy, so that `rrcm --help` is quick.
"""

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from rrcm.config import defaults
from rrcm.core.errors import RrcmError


def _setting(key: str, otherwise: Any) -> str:
    """Return the default of an option: a key of params.yaml, and what holds where there is none."""
    return f"{otherwise}, or {key} of params.yaml"


Sigma = Annotated[
    float, Option(help="Standard deviation of the noise, for pixels in [0, 1].", show_default=False)
]

# The classifier.
Model = Annotated[str | None, Option(help="Model of params.yaml that was trained at --sigma.")]
Method = Annotated[str | None, Option(help="Training method of --model.", show_default="rrcm")]
EvalSigma = Annotated[
    float | None,
    Option(help="Noise to smooth --model with, if not that of its training.", show_default="SIGMA"),
]
Onnx = Annotated[str | None, Option(help="Any classifier as an ONNX file, instead of --model.")]
Timm = Annotated[str | None, Option(help="Name of a timm network, instead of --model.")]
Weights = Annotated[
    Path | None,
    Option(help="Weights file for --timm.", show_default="timm's pretrained weights"),
]
Denoiser = Annotated[
    Path | None,
    Option(help="ONNX file that denoises the pixels before --onnx or --timm.", show_default="none"),
]

# Images, and their preprocessing for a classifier from elsewhere.
Images = Annotated[Path | None, Option(help="Folder of images to certify --onnx or --timm on.")]
Labels = Annotated[
    Path | None,
    Option(help="CSV file of file,label for --images.", show_default="names of their folders"),
]
Strict = Annotated[
    bool, Option("--strict", help="Fail if an image cannot be read, instead of leaving it out.")
]
Classes = Annotated[
    Path | None, Option(help="Text file with a class name per line, in the order of the scores.")
]
Size = Annotated[
    str | None,
    Option(help="Input size in pixels, as 224 or HxW.", show_default="the network's own"),
]
Channels = Annotated[
    int | None,
    Option(
        help="Input channels, 1 or 3, of an ONNX file that does not fix them.", show_default="3"
    ),
]
Resize = Annotated[
    str | None,
    Option(
        help="How images get the input size, before the noise: exact, squash or crop.",
        show_default="crop",
    ),
]
Mean = Annotated[
    str | None,
    Option(
        help="Mean of each channel that pixels are normalised by, as .485,.456,.406.",
        show_default="0, or the timm network's own",
    ),
]
Std = Annotated[
    str | None,
    Option(
        help="Standard deviation of each channel, as .229,.224,.225.",
        show_default="1, or the timm network's own",
    ),
]
Output = Annotated[
    str | None,
    Option(
        help="Name of the ONNX output that holds the scores.",
        show_default="the only one of two axes",
    ),
]

# The draws.
BatchSize = Annotated[
    int | None,
    Option(
        help="Noisy images per batch.",
        show_default=_setting("sample.batch_size", defaults.DRAWS.batch_size),
    ),
]
N = Annotated[
    int | None,
    Option(help="Noisy draws per image.", show_default=_setting("sample.n", defaults.DRAWS.n)),
]
N0 = Annotated[
    int | None,
    Option(
        help="Noisy draws before these, which choose the class.",
        show_default=_setting("sample.n0", defaults.DRAWS.n0),
    ),
]
Alpha = Annotated[
    float | None,
    Option(
        help="Failure probability of each certificate.",
        show_default=_setting("certify.alpha", defaults.CERTIFY.alpha),
    ),
]
Stop = Annotated[
    str | None,
    Option(
        help="Stopping rule, such as none, grid, spending or anytime.",
        show_default=_setting("sample.stop", "grid to certify and anytime to predict"),
    ),
]
Radii = Annotated[
    str | None,
    Option(
        help="Radii to decide, such as 0,0.25,0.5.",
        show_default=_setting(
            "report.radii", ",".join(f"{radius:g}" for radius in defaults.REPORT.radii)
        ),
    ),
]
Radius = Annotated[
    float | None,
    Option(
        help="Is each image robust at this radius? Draws until that is decided.",
        show_default="none",
    ),
]
Tolerance = Annotated[
    float | None,
    Option(
        help="How far the rule anytime leaves a radius below that of --n draws, in sigmas.",
        show_default=_setting(
            "stopping.anytime.tolerance", defaults.STOPPING["anytime"]["tolerance"]
        ),
    ),
]
Noise = Annotated[
    str | None,
    Option(
        help="Sampler of the noise: gaussian, sound or secure.",
        show_default=_setting("sample.noise", defaults.DRAWS.noise),
    ),
]
Certificate = Annotated[
    str | None,
    Option(
        help="Certificate to report, such as cohen or two_class.",
        show_default=_setting(
            "the first of certify.certificates", defaults.CERTIFY.certificates[0]
        ),
    ),
]
Precision = Annotated[
    str | None,
    Option(
        help="Precision of --model: fp32, fp16, int8, bf16, or auto: what is fastest here.",
        show_default="sample.precision of params.yaml",
    ),
]
Allow = Annotated[
    str | None,
    Option(
        help="Precisions beside fp32 for --precision auto to choose from, such as int8,bf16.",
        show_default="none",
    ),
]
Backend = Annotated[
    str | None,
    Option(help="What runs --model: onnx or torch.", show_default="sample.backend of params.yaml"),
]
Seed = Annotated[
    int | None,
    Option(
        help="Seed of the noise.",
        show_default="fresh for image files, or sample.seed of params.yaml",
    ),
]
Split = Annotated[
    str | None,
    Option(
        help="Split of the dataset for --model: test, or choice to compare recipes on.",
        show_default="sample.split of params.yaml",
    ),
]
Subset = Annotated[
    str | None,
    Option(
        help="Images to take: all, every:K or first:K.",
        show_default=_setting("sample.subset", defaults.DRAWS.subset),
    ),
]
Budget = Annotated[
    str | None,
    Option(
        help="Stop drawing after this time (90s, 10m, 2h); certificates stay valid.",
        show_default="none",
    ),
]
Shard = Annotated[str, Option(help="Certify only part i of k of the images, as i/k.")]
Devices = Annotated[
    str | None,
    Option(
        help="One process on each of these devices: GPU numbers, or cpu (0,1 or cpu,cpu), or all.",
        show_default="the first GPU, else the CPU",
    ),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The options of a command as they were typed; None or False where one was left out."""

    sigma: float
    model: str | None = None
    method: str | None = None
    eval_sigma: float | None = None
    onnx: str | None = None
    timm: str | None = None
    weights: Path | None = None
    denoiser: Path | None = None
    images: Path | None = None
    labels: Path | None = None
    strict: bool = False
    classes: Path | None = None
    size: str | None = None
    channels: int | None = None
    resize: str | None = None
    mean: str | None = None
    std: str | None = None
    output: str | None = None
    batch_size: int | None = None
    n: int | None = None
    n0: int | None = None
    alpha: float | None = None
    stop: str | None = None
    radii: str | None = None
    radius: float | None = None
    tolerance: float | None = None
    noise: str | None = None
    certificate: str | None = None
    precision: str | None = None
    allow: str | None = None
    backend: str | None = None
    seed: int | None = None
    split: str | None = None
    subset: str | None = None
    budget: str | None = None
    shard: str = "1/1"
    devices: str | None = None

    @classmethod
    def of(cls, parameters: dict[str, Any]) -> "Options":
        """Return the options among the ``parameters`` of a command, its first ``locals()``."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in parameters.items() if name in names})

    def given(self) -> dict[str, Any]:
        """Return the options that were typed, by name."""
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {k: value for k, value in named.items() if value is not None and value is not False}

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Have errors of the block name an option that was typed, not the key that it overrides.

        ``n: …`` at the beginning, ``at n = …``, ``sample.n`` and ``certify.n`` become ``--n``. An
        error of params.yaml itself, which begins with its name, is left as it is.
        """
        try:
            yield
        except RrcmError as error:
            text = str(error)
            if text.startswith("params.yaml"):
                raise
            for key in self.given():
                flag = f"--{key.replace('_', '-')}"
                places = (
                    rf"^{key}(?=: )|(?<=\bat ){key}(?= = )|\b(?:sample|certify|report)\.{key}\b"
                )
                text = re.sub(places, flag, text)
            error.args = (text,)
            raise
