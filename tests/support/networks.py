"""Networks of every architecture, small, with weights of which all matter; and one naive block."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from helpers import MODEL
from torch import Tensor, nn

from rrcm.config.sections import Model
from rrcm.models.trained.base import classifier

PROJECTOR = {"projector_width": 32, "projector_dim": 16}
LENET = {"image_size": 28, "channels": 1, **PROJECTOR}
RESNET9 = {"stem": 8, "image_size": 32, "channels": 3, **PROJECTOR}
RESNET = {"size": "8", "image_size": 8, "channels": 1, "mean": [0.3], "std": [0.2], **PROJECTOR}
COLOUR = {"channels": 3, "mean": [0.3, 0.5, 0.6], "std": [0.2, 0.3, 0.25]}
ODD = RESNET | COLOUR | {"size": "14", "image_size": 11}
IMAGENET = RESNET | COLOUR | {"size": "50", "image_size": 40}
SHAPES = {"lenet": LENET, "resnet": RESNET, "resnet9": RESNET9, "vit": MODEL.shape}


def build(
    architecture: str,
    *,
    classes: int = 7,
    condition: str = "exact",
    final_norm: bool = False,
    **changed: Any,
) -> classifier.Classifier:
    """A classifier whose shape is that of `SHAPES`, changed."""
    model = Model(architecture=architecture, shape=SHAPES[architecture] | changed)
    return classifier.build(model, classes=classes, condition=condition, final_norm=final_norm)


def fill(network: nn.Module) -> None:
    """Draw every parameter and statistic, those that start at 0 or 1 too."""
    for module in network.modules():
        normalises = isinstance(module, nn.BatchNorm2d | nn.LayerNorm)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
        for name, parameter in module.named_parameters(recurse=False):
            width = parameter[0].numel() if parameter.ndim > 1 else 16
            mean = float(normalises and name == "weight")
            nn.init.normal_(parameter, mean=mean, std=width**-0.5)


def attended(x: Tensor, w: dict[str, Tensor], name: str, heads: int) -> Tensor:
    """A pre-norm transformer block on tokens [B, T, D], head by head."""

    def normed(x: Tensor, which: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.{which}.weight"], w[f"{name}.{which}.bias"])

    q, k, v = (normed(x, "norm1") @ w[f"{name}.attn.qkv.weight"].T).chunk(3, dim=-1)
    seen = []
    for i in range(heads):
        part = slice(i * x.shape[-1] // heads, (i + 1) * x.shape[-1] // heads)
        scores = q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(x.shape[-1] / heads)
        seen.append(scores.softmax(dim=-1) @ v[..., part])
    seen = torch.cat(seen, dim=-1)
    x = x + seen @ w[f"{name}.attn.proj.weight"].T + w[f"{name}.attn.proj.bias"]
    inner = normed(x, "norm2") @ w[f"{name}.mlp.fc1.weight"].T + w[f"{name}.mlp.fc1.bias"]
    return x + F.gelu(inner) @ w[f"{name}.mlp.fc2.weight"].T + w[f"{name}.mlp.fc2.bias"]
