"""A classifier as certification calls it, whatever runs it."""

import sys
from collections.abc import Callable
from typing import Protocol, Self

import torch
from torch import Tensor

from rrcm.core.errors import BackendError


class Backend(Protocol):
    """A classifier at the noise level ``sigma``, which is that of the noise of its votes.

    ``weights`` is a digest of the function, and ``provider`` names the kernels that compute it.
    ``normals`` is the shape of the standard normal numbers z that each row of a random classifier
    takes, () for a deterministic one. Batches have ``fixed`` rows, or any number if that is 0; more
    rows than ``most`` take longer each. ``count_nan`` is whether noise without scores votes for a
    last class, which is none, or None where nobody can ask for it. ``function`` is `scores` with
    gradients, where there are any. ``combines`` is the place where it computes something of all
    pictures of a batch together, if it does. ``notes`` are lines for whoever opened it.
    """

    sigma: float
    classes: list[str]
    weights: str
    provider: str
    device: torch.device
    normals: tuple[int, ...] = ()
    fixed: int = 0
    most: int = sys.maxsize
    count_nan: bool | None = None
    function: Callable[[Tensor], Tensor] | None = None
    combines: str = ""
    notes: tuple[str, ...] = ()

    @property
    def copies(self) -> int:
        """How many calls, one after the other, ask each copy that it keeps for other threads."""
        return 1

    def scores(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """Scores [B, K] of noisy pixels [B, C, H, W] and ``z`` [B, *normals], all on ``device``.

        Float32, from any thread; on a GPU, in the order of its current stream. ``z`` is None where
        ``normals`` is ().
        """

    def unlike(self, x: Tensor) -> str:
        """How noisy pixels [B, C, H, W] differ from what it remembers of training; empty if not."""
        return ""

    def on(self, device: str) -> Self:
        """The same function on another device.

        Raises:
            BackendError: There is no such device, or it cannot be copied.
        """
        raise BackendError("devices: only a network in memory is copied to other devices")
