"""``rrcm.losses``: the losses of this project, for a training loop of one's own.

They take images without noise in [0, 1], add the noise themselves, and return one value for each
image, [B]. Randomness is that of PyTorch's global generator. Equations are those of
docs/theory.md: eq. 7 is the loss of rRCM.
"""

from typing import Any

import torch
from torch import Tensor, nn

from rrcm.config.certification import noise_level
from rrcm.core import arguments, registry
from rrcm.core.ranges import require
from rrcm.core.schema import parse
from rrcm.training.engine.draws import Draws
from rrcm.training.shared.losses import info_nce

__all__ = ["info_nce", "loss", "representation_consistency"]


@arguments.checked()
def loss(
    method: str,
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    sigma: float,
    constants: dict[str, Any] | None = None,
    done: float = 1.0,
    table: Tensor | None = None,
) -> Tensor:
    """The loss of a training method, a file of rrcm/training/methods/ (docs/methods.md).

    Args:
        method: Its name, such as ``consistency``.
        network: Pixels [B, C, H, W] -> logits [B, K], with any normalisation inside.
        x: Images, [B, C, H, W].
        y: Classes [B], or probabilities [B, K].
        sigma: Standard deviation of the noise, in pixels.
        constants: All constants of the method, as under ``loss`` of a run.
        done: Share of the training that has passed, for losses that set in gradually.
        table: What the method keeps of these images, such as a teacher's class frequencies,
            [B, K]; only for methods that have one (``catrs``).

    Returns:
        One value for each image, [B].

    Raises:
        ConfigError: There is no such method, a constant is missing or unknown, an argument is of
            another type or out of range, or a table is missing or not asked for.
    """
    require(x.is_floating_point(), f"x: pixels of floating point in [0, 1], got {x.dtype}")
    noise_level(sigma)
    component = registry.load("methods", method)
    asks = hasattr(component, "table")
    require(asks == (table is not None), f"table: {method} {'needs one' if asks else 'has none'}")
    return component.loss(
        _Blind(network),
        x,
        y,
        sigma=torch.tensor(sigma, dtype=x.dtype, device=x.device),
        draw=_draws(),
        done=done,
        cfg=parse(constants or {}, component.Config, where=method),
        **({} if table is None else {"table": table}),
    )


@arguments.checked()
def representation_consistency(
    encoder: nn.Module,
    projector: nn.Module,
    target: nn.Module,
    views: tuple[Tensor, Tensor, Tensor],
    *,
    levels: Tensor,
    weights: Tensor | None = None,
    tau_contrast: float = 0.2,
    tau_consistency: float = 0.2,
    weight: float = 1.0,
) -> Tensor:
    """The pre-training loss of rRCM (eq. 7), without labels: Lei et al. (2025), arXiv:2501.13094.

    Args:
        encoder: (pixels [B, C, H, W], sigma [B]) -> representations [B, D].
        projector: Representations [B, D] -> [B, P].
        target: ``nn.ModuleDict`` with the moving averages of ``encoder`` and ``projector`` under
            these names; it gets no gradient, and following them is the caller's business.
        views: Two augmented views of each image, and one that is hardly changed.
        levels: Noise levels t = 2 sigma, descending, as `rrcm.noise.levels.karras_grid` makes them.
        weights: Relative frequency of each neighbouring pair; None is uniform.
        tau_contrast: Temperature of the contrast between views.
        tau_consistency: Temperature of that between neighbouring levels.
        weight: Of the second term.

    Returns:
        One value for each image, [B].
    """
    component = registry.load("objectives", "rrcm")
    constants = component.Config(
        tau_contrast=tau_contrast,
        tau_consistency=tau_consistency,
        consistency=weight,
        symmetric=False,
        align=[],
        ema=0.0,
    )
    terms, _ = component.loss(
        nn.ModuleDict({"encoder": encoder, "projector": projector}),
        target,
        dict(zip(component.VIEWS, views, strict=True)),
        levels=levels,
        weights=weights,
        draw=_draws(),
        cfg=constants,
    )
    return sum(terms.values(), torch.zeros(()).to(levels.device))


class _Blind(nn.Module):
    """A network that is not told the noise level."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Logits of ``x``."""
        logits: Any = self.network(x)
        return getattr(logits, "logits", logits)


def _draws() -> Draws:
    """Numbers that follow ``torch.manual_seed``."""
    return Draws(int(torch.randint(2**62, ())), 0)
