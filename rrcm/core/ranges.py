"""Range checks for the values of ``params.yaml``.

The dataclass that holds a value checks it. It does not know its place in the file, which
`schema.parse` puts in front of the message.
"""

import math
import re

from rrcm.core.errors import ConfigError
from rrcm.core.registry import suggest
from rrcm.core.schema import shown

# Larger numbers are taken for mistakes: they would fail after hours of training, or take all
# memory. The limits are far above anything that was ever trained or certified.
COUNT = 2**31 - 1  # steps, images, weights of a loss, …: counts that 32 bits hold
SEEDS = 2**32 - 1  # larger ones would make streams of noise.streams.torch_seed overlap
SIDE = 2**14  # pixels per side of a picture
WIDTH = 2**16  # of a layer: channels, features, heads
LAYERS = 2**10  # blocks of a network; also processes on a host
BATCH = 2**20  # images per batch; also entries of a table such as a noise schedule
COPIES = 2**16  # per image: noisy copies, votes, steps of an attack
# WIDTHxDEPTHxHEADS, at most 99,999, 999 and 999
CUSTOM = re.compile(r"[1-9][0-9]{0,4}x[1-9][0-9]{0,2}x[1-9][0-9]{0,2}")


def require(condition: bool, message: str) -> None:
    """Raise a ConfigError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ConfigError(message)


def positive(section: object, *keys: str, most: int = COUNT) -> None:
    """Refuse values that are not positive, or above ``most``."""
    for key in keys:
        value = getattr(section, key)
        require(0 < value < math.inf, f"{key}: must be positive, got {value}")
        not_negative(section, key, most=most)


def not_negative(section: object, *keys: str, most: int = COUNT) -> None:
    """Refuse values that are negative, or above ``most``."""
    for key in keys:
        value = getattr(section, key)
        require(0 <= value < math.inf, f"{key}: must be finite and >= 0, got {value}")
        require(value <= most, f"{key}: at most {most}, got {value}; more is taken for a mistake")


def share(section: object, *keys: str) -> None:
    """Refuse values outside of [0, 1]."""
    for key in keys:
        value = getattr(section, key)
        require(0 <= value <= 1, f"{key}: a share in [0, 1], got {value}")


def inside(name: str, value: float) -> None:
    """Refuse a probability outside of (0, 1)."""
    require(0 < value < 1, f"{name}: must be in (0, 1), got {value}")


def dimensions(size: str, named: dict[str, tuple[int, int, int]]) -> tuple[int, int, int]:
    """Width, depth and heads of a ``size``: a name, or WIDTHxDEPTHxHEADS.

    Raises:
        ConfigError: It is neither, or the width is odd or no multiple of the heads.
    """
    if size not in named and not CUSTOM.fullmatch(size):
        raise ConfigError(
            f"size: no {shown(size)}, only {', '.join(named)}, or WIDTHxDEPTHxHEADS such as "
            f"48x3x4.{suggest(size, [*named])}"
        )
    width, depth, heads = named.get(size) or (int(n) for n in size.split("x"))
    require(
        width % 2 == 0 and width % heads == 0,
        f"size: width {width} must be even and a multiple of {heads} heads",
    )
    return width, depth, heads
