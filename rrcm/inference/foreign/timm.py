"""Backend for timm classifiers, with timm's pretrained weights or those in a file."""

import dataclasses

import torch

from rrcm.config.foreign import Foreign
from rrcm.inference.foreign import _network, _timm


class Backend(_network.Backend):
    """A timm network in evaluation mode.

    ``fit`` comes from timm's configuration of the network, and the order of classes is that of
    timm's data sets for a file of its trainer.
    ``notes`` has a line if the file of weights has several state dicts, and says which was taken,
    for what was given otherwise than its trainer says, and for a crop that is not ours.
    """

    def __init__(self, foreign: Foreign, *, device: str = "cpu") -> None:
        """Build the network and load ``weights``, by default timm's pretrained ones.

        They are a safetensors file, or a PyTorch file of tensors only, which sets the number of
        classes. ``mean``, ``std`` and ``size`` default to those of timm's weights, or to what
        timm's trainer wrote beside ``weights``, whose pooling and ``bn_eps`` are taken, too. The
        attribute ``weights`` is the SHA-256 of the name, all tensors, and the normalisation.

        Raises:
            BackendError: There is no such network, or the weights do not fit, or are of another.
            CheckpointError: ``weights`` is missing, damaged, or no state dict.
            ConfigError: ``mean`` or ``std`` is invalid.
        """
        if device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        made = _timm.opened(foreign)
        self.notes, self.natural = made.notes, made.natural
        foreign = dataclasses.replace(foreign, mean=made.mean, std=made.std)
        super().__init__(made.network.to(device), foreign, fit=made.fit, name=foreign.source)
