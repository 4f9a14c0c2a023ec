"""rRCM fine-tuning, Lei et al. (2025), section 3.3: the Consistency objective on an rRCM encoder.

The loss of the paper, which makes that encoder, is rrcm/objectives/rrcm.py.
"""

from rrcm.losses import Consistency as Config
from rrcm.losses import consistency as loss

__all__ = ["PRETRAINED", "Config", "loss"]

PRETRAINED = True  # without a pre-trained encoder this would be another method
