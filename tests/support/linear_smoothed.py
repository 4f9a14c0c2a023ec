"""A smoothed linear classifier of 2 x 2 pixels, for servers."""

import dataclasses

import builders

from rrcm.certification.smoothed import Smoothed
from rrcm.config.certification import Sample
from rrcm.config.defaults import DRAWS

SHAPE = (1, 2, 2)
FEW = dataclasses.replace(DRAWS, n=400, batch_size=32)


def classifier(
    kind: type[builders.Linear] = builders.Linear, draws: Sample = FEW, sigma: float = 0.5
) -> Smoothed:
    plain = builders.linear()
    function = kind(plain.w.tolist(), plain.b.tolist(), sigma=sigma)
    return Smoothed(function, shape=SHAPE, draws=draws)
