"""Pieces of draws, and counters of the votes on them."""

from builders import SIGMA, images

from rrcm.certification.sampling import voting
from rrcm.certification.sampling.batching import Job, Piece
from rrcm.certification.sampling.voting import BoundNoise
from rrcm.core import registry

SIX = images(6)


def pieces(*parts):
    """Pieces of (place, first draw, draws)."""
    return [Piece(Job(row=row, bounds=()), 0, first, size) for row, first, size in parts]


def counting(backend, split=SIX, *, component="gaussian", seed=2**40 + 3, batch_size=7):
    noise = BoundNoise(registry.load("distributions", component), SIGMA, seed, split.max_value)
    return voting.counter(backend, split, noise=noise, batch_size=batch_size)
