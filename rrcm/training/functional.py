"""``rrcm.losses``: the losses of this project, for a training loop of one's own.

Each takes a network of pixels in [0, 1] (x [B, C, H, W] -> logits [B, K]) that has any
normalisation inside, images ``x`` without noise, and labels ``y``, classes [B] or probabilities
[B, K]; it adds the noise itself, and returns one value for each image, [B]. Constants have the
names of the papers. Randomness is that of PyTorch's global generator. ``done`` is the share of the
training that has passed, for losses that set in gradually. Equations are those of docs/theory.md.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from rrcm.core import registry
from rrcm.training.engine.draws import Draws
from rrcm.training.shared.losses import info_nce

__all__ = [
    "consistency",
    "gaussian",
    "info_nce",
    "macer",
    "representation_consistency",
    "smoothadv",
    "smoothmix",
    "stability",
]


def gaussian(network: nn.Module, x: Tensor, y: Tensor, *, sigma: float) -> Tensor:
    """Cross-entropy on one noisy copy of each image: Cohen et al. (2019), arXiv:1902.02918."""
    return _of("gaussian", network, x, y, sigma=sigma)


def stability(network: nn.Module, x: Tensor, y: Tensor, *, sigma: float, lbd: float) -> Tensor:
    """Stability training (eq. 44): Li et al. (2019), arXiv:1809.03113; ``lbd`` weighs its term."""
    return _of("stability", network, x, y, sigma=sigma, lbd=lbd)


def consistency(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    sigma: float,
    lbd: float,
    eta: float = 0.5,
    m: int = 2,
    measure: Literal["kl", "mse"] = "kl",
) -> Tensor:
    """Consistency of ``m`` noisy copies (eq. 8): Jeong & Shin (2020), arXiv:2006.04062.

    It is also the fine-tuning loss of rRCM. ``lbd`` weighs the distance of the copies' predictions
    from their mean, ``eta`` the entropy of the mean.
    """
    return _of("consistency", network, x, y, sigma=sigma, lbd=lbd, eta=eta, m=m, measure=measure)


def smoothadv(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    sigma: float,
    epsilon: float,
    steps: int = 10,
    m: int = 4,
    attack: Literal["pgd", "ddn"] = "pgd",
    multi_noise: bool = True,
    lbd: float = 0.0,
    eta: float = 0.0,
    warmup: float = 0.0,
    done: float = 1.0,
) -> Tensor:
    """SmoothAdv (eq. 41): Salman et al. (2019), arXiv:1906.04584; an attack within ``epsilon``."""
    constants = {"epsilon": epsilon, "steps": steps, "m": m, "attack": attack, "lbd": lbd}
    constants |= {"multi_noise": multi_noise, "eta": eta, "warmup": warmup}
    return _of("smoothadv", network, x, y, sigma=sigma, done=done, **constants)


def smoothmix(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    sigma: float,
    alpha: float,
    eta: float = 5.0,
    steps: int = 4,
    m: int = 2,
    one_step: bool = False,
    max_norm: float = float("inf"),
    warmup: float = 0.0,
    done: float = 1.0,
) -> Tensor:
    """SmoothMix (eq. 43): Jeong et al. (2021), arXiv:2111.09277; steps of length ``alpha``."""
    constants = {"alpha": alpha, "eta": eta, "steps": steps, "m": m, "one_step": one_step}
    constants |= {"max_norm": max_norm, "warmup": warmup}
    return _of("smoothmix", network, x, y, sigma=sigma, done=done, **constants)


def macer(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    sigma: float,
    lbd: float,
    gamma: float = 8.0,
    beta: float = 16.0,
    m: int = 16,
    defer: float = 0.0,
    done: float = 1.0,
) -> Tensor:
    """MACER (eq. 42): Zhai et al. (2020), arXiv:2001.02378; a hinge on the soft radius."""
    constants = {"lbd": lbd, "gamma": gamma, "beta": beta, "m": m, "defer": defer}
    return _of("macer", network, x, y, sigma=sigma, done=done, **constants)


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


def _of(
    method: str,
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    sigma: float,
    done: float = 1.0,
    **cfg: Any,
) -> Tensor:
    component = registry.load("methods", method)
    return component.loss(
        _Blind(network),
        x,
        y,
        sigma=torch.tensor(sigma, dtype=x.dtype, device=x.device),
        draw=_draws(),
        done=done,
        cfg=component.Config(**cfg),
    )


def _draws() -> Draws:
    """Numbers that follow ``torch.manual_seed``."""
    return Draws(int(torch.randint(2**62, ())), 0)
