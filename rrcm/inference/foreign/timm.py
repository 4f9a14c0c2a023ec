"""Backend for timm classifiers, with timm's pretrained weights or those in a file."""

from pathlib import Path

import torch

from rrcm.inference.foreign import _network, _timm


class Backend(_network.Backend):
    """A timm network in evaluation mode, for pictures of ``shape`` [C, H, W].

    ``crop_pct``, ``interpolation`` and ``resize`` come from timm's configuration of the network,
    and the order of classes is that of timm's data sets for a file of its trainer.
    ``notes`` has a line if the file of weights has several state dicts, and says which was taken,
    for what was given otherwise than its trainer says, and for a crop that is not ours.
    """

    def __init__(
        self,
        name: str,
        *,
        sigma: float,
        weights: Path | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        size: tuple[int, int] | None = None,
        count_nan: bool = False,
        device: str = "cpu",
    ) -> None:
        """Build ``name`` and load ``weights``, by default timm's pretrained ones.

        ``sigma`` is the noise level to certify at. ``weights`` is a safetensors file, or a PyTorch
        file of tensors only; it sets the number of classes. ``mean``, ``std`` (of pixels in [0, 1],
        applied after the noise) and ``size`` default to those of timm's weights, or to what timm's
        trainer wrote beside ``weights``, whose pooling and ``bn_eps`` are taken, too. The attribute
        ``weights`` is the SHA-256 of the name, all tensors, and the normalisation.

        Raises:
            BackendError: There is no such network, or the weights do not fit, or are of another.
            CheckpointError: ``weights`` is missing, damaged, or no state dict.
            ConfigError: ``mean`` or ``std`` is invalid.
        """
        if device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        made = _timm.opened(name, weights, mean, std, size)
        self.notes, self.natural, self.resize = made.notes, made.natural, made.resize
        self.crop_pct, self.interpolation = made.crop_pct, made.interpolation
        super().__init__(
            made.network.to(device), sigma=sigma, shape=made.shape, mean=made.mean, std=made.std,
            name=name, count_nan=count_nan,
        )  # fmt: skip
