"""A classifier trained elsewhere, as `rrcm.smooth` and the options of commands describe it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rrcm.config.certification import noise_level
from rrcm.core.errors import BackendError, ConfigError

WEIGHTS = (".pth", ".pt", ".bin", ".ckpt", ".safetensors", ".tar", ".th")  # endings of checkpoints
KINDS: dict[str, set[str]] = {  # files of rrcm/inference/foreign/, with settings not all have
    "onnx": {"output", "channels", "batch"},
    "timm": {"weights"},
    "checkpoint": {"denoiser", "normalise"},
    "module": {"channels", "batch"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Foreign:
    """What opens a classifier for noise of ``sigma``, and prepares its pictures.

    ``kind`` is one of `KINDS`, whose ``Backend`` takes ``source``: the path of an ONNX file, a list
    of those of checkpoints, the name of a timm network, or a PyTorch network or its
    ``FILE.py:FUNCTION``. Pictures have ``size`` [H, W] and ``channels``. A value of None is the
    classifier's own; `rrcm.smooth` describes the others.

    Raises:
        BackendError, ConfigError: A value is invalid, or none of this kind.
    """

    kind: str
    source: Any
    sigma: float
    classes: list[str] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    size: tuple[int, int] | None = None
    channels: int | None = None
    resize: str | None = None
    upright: bool = True
    weights: Path | None = None
    denoiser: Path | None = None
    normalise: str | None = None
    output: str | None = None
    batch: int | None = None
    count_nan: bool = False

    def __post_init__(self) -> None:
        noise_level(self.sigma)
        if self.kind == "timm" and self.source.endswith(WEIGHTS):
            raise BackendError(
                f"{self.source}: a file, not the name of a timm network; give --checkpoint"
            )
        for name in sorted(set().union(*KINDS.values()) - KINDS[self.kind]):
            if getattr(self, name) is not None:
                takes = " or ".join(kind for kind in KINDS if name in KINDS[kind])
                raise ConfigError(f"{name}: only {takes} takes it, not {self.kind}")

    @property
    def outputs(self) -> int | None:
        """How many classes are named, if any are."""
        return None if self.classes is None else len(self.classes)

    def __str__(self) -> str:
        """The name, or the files."""
        several = self.source if isinstance(self.source, list) else [self.source]
        return " and ".join(map(str, several))
