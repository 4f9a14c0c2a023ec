"""Reads sigma from the path of a table, as in ``noise_0.50/test/sigma_0.50`` of Cohen et al."""

import re
from dataclasses import dataclass
from pathlib import Path

LARGEST = 10.0  # pixels of [0, 1]; a larger number has other units, such as levels of 0..255
_NAMED = re.compile(
    r"(?<![a-z])(?P<name>sigma|noise)[_=-]?(?P<sigma>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?![0-9])", re.I
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """A sigma, in pixels of [0, 1], and the part of the path that names it.

    ``training`` is True where the path says ``noise``, which may be the sigma of training.
    """

    sigma: float
    text: str
    training: bool


def sigma_of(path: Path) -> Named | None:
    """The last ``sigma`` in a path, or else the last ``noise``; None without either."""
    found = [
        Named(sigma=value, text=match[0], training=match["name"].lower() == "noise")
        for match in _NAMED.finditer(path.as_posix())
        if 0 < (value := float(match["sigma"])) <= LARGEST
    ]
    return max(reversed(found), key=lambda named: not named.training, default=None)
