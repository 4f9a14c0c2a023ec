"""rRCM fine-tuning, Lei et al. (2025), arXiv:2501.13094: Consistency from a pre-trained encoder.

The pre-training loss of the paper is in rrcm/training/objectives/rrcm.py.
"""

from rrcm.training.shared.losses import Consistency as Config
from rrcm.training.shared.losses import consistency as loss

__all__ = ["PRETRAINED", "Config", "loss"]

PRETRAINED = True  # without a pre-trained encoder this would be another method
