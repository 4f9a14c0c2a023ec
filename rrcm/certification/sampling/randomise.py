"""Counter-based normal numbers for random base classifiers, such as DensePure."""

from torch import Tensor

from rrcm.noise import streams


def normals(seed: int, images: Tensor, draws: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers of each (image, draw), float32 [B, *shape].

    Guarantee: row b depends on (seed, images[b], draws[b]) alone, and is the bits of
    ``noise.gaussian(seed, images, draws, shape, stream=noise.RANDOMISE)`` on the same device.
    """
    if draws.device.type != "cpu":
        return streams.gaussian(seed, images, draws, shape, stream=streams.RANDOMISE)
    from rrcm.certification.sampling import philox  # numba takes a while to import

    return philox.normals(seed, images, draws, shape, stream=streams.RANDOMISE)
