"""The sigma that a file's path names, as in ``noise_0.50/test/sigma_0.50`` of Cohen et al."""

import re
from dataclasses import dataclass
from pathlib import Path

LARGEST = 10.0  # pixels of [0, 1]; a larger number counts 255 levels, or something else
_NAMED = re.compile(
    r"(?<![a-z])(?P<name>sigma|noise)[_=-]?(?P<sigma>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?![0-9])", re.I
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """A sigma, in pixels of [0, 1], and the text that names it.

    ``training`` says that it may be that of training: the path speaks of noise only.
    """

    sigma: float
    text: str
    training: bool


def sigma_of(path: Path) -> Named | None:
    """The last sigma that a path names, or else the last noise; None if it names neither."""
    found = [
        Named(sigma=value, text=match[0], training=match["name"].lower() == "noise")
        for match in _NAMED.finditer(path.as_posix())
        if 0 < (value := float(match["sigma"])) <= LARGEST
    ]
    return max(reversed(found), key=lambda named: not named.training, default=None)
