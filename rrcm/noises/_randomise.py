"""Normal numbers for a base classifier that is random itself, counter-based like its noise."""

from torch import Tensor

from rrcm import noise

RANDOMISE = 6  # their stream; 0 to 5 are those of rrcm/noise.py, 7 is that of rrcm/purified.py


def normals(seed: int, images: Tensor, draws: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers of each (image, draw), float32 [B, *shape].

    Guarantee: row b depends on (seed, images[b], draws[b]) alone, and is the bits of
    ``noise.gaussian(seed, images, draws, shape, stream=RANDOMISE)`` on the same device.
    """
    if draws.device.type != "cpu":
        return noise.gaussian(seed, images, draws, shape, stream=RANDOMISE)
    from rrcm import philox  # numba takes a while to import

    return philox.normals(seed, images, draws, shape, stream=RANDOMISE)
