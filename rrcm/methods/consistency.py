"""Consistency regularisation, Jeong & Shin (2020), arXiv:2006.04062: noisy copies must agree."""

from rrcm.losses import Consistency as Config
from rrcm.losses import consistency as loss

__all__ = ["PRETRAINED", "Config", "loss"]

PRETRAINED = False  # starts from any weights
