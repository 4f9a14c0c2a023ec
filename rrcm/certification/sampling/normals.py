"""Counter-based normal numbers: by the compiled kernels on a CPU, by PyTorch elsewhere."""

from torch import Tensor

from rrcm.noise import streams


def normals(
    seed: int, images: Tensor, draws: Tensor, shape: tuple[int, ...], *, stream: int
) -> Tensor:
    """Standard normal numbers of each (image, draw) in a stream, float32 [B, *shape].

    Guarantee: row b depends on (seed, images[b], draws[b], stream) alone, and is the bits of
    `rrcm.noise.streams.gaussian` on the same device.
    """
    if draws.device.type != "cpu":
        return streams.gaussian(seed, images, draws, shape, stream=stream)
    from rrcm.certification.sampling import philox  # numba takes a while to import

    return philox.normals(seed, images, draws, shape, stream=stream)
