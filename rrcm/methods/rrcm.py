"""rRCM fine-tuning, Lei et al. (2025), arXiv:2501.13094: Consistency on a pre-trained encoder.

The loss of the paper, which makes that encoder, is rrcm/objectives/rrcm.py.
"""

from rrcm.losses import Consistency as Config
from rrcm.losses import consistency as loss

__all__ = ["PRETRAINED", "Config", "loss"]

PRETRAINED = True  # without a pre-trained encoder this would be another method
