"""Consistency regularization between noisy copies, Jeong & Shin (2020), arXiv:2006.04062."""

from rrcm.training.shared.losses import Consistency as Config
from rrcm.training.shared.losses import consistency as loss

__all__ = ["PRETRAINED", "Config", "loss"]

PRETRAINED = False  # starts from any weights
