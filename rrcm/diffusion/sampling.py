r"""Sampling from diffusion models: Heun's method and DPM-Solver.

In the coordinates of rrcm/models/trained/denoiser.py, samplers integrate from the largest
noise level to the smallest

.. math:: \frac{\mathrm d x}{\mathrm d s} = \frac{x - \hat x_0(x, s)}{s}

(Song et al., 2021, arXiv:2011.13456; Karras et al., 2022, arXiv:2206.00364). ``dpm_solver`` is
DPM-Solver (Lu et al., 2022, arXiv:2206.00927) of order 3 from diffusers, ``heun`` the second-order
method of Karras et al. Both work with any noise schedule, by interpolating the logarithm of the
noise between its times, and return the network's clean image at the smallest level.

Guarantee: the same seed gives the same images on the same kind of machine; the noise that image i
starts from does not depend on the number of images or the batch size.
"""

import itertools
import math
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rrcm.config.evaluation import Generation
from rrcm.config.sections import NONE
from rrcm.core.errors import ConfigError
from rrcm.diffusion import condition
from rrcm.diffusion.condition import Condition
from rrcm.models.trained import denoiser
from rrcm.models.trained.denoiser import Denoiser
from rrcm.noise import units
from rrcm.noise.levels import karras_grid
from rrcm.training.engine.draws import Draws

LEVELS = (0.002, 80.0)  # last and first noise level of sampling, in model space (Karras et al.)
COLUMNS = 8  # noise levels of `from_images`


def heun(model: Denoiser, z: Tensor, steps: int, c: Tensor | None = None) -> Tensor:
    """Turn noise ``z`` [B, C, H, W] into images in model space, in 2 ``steps`` - 1 network calls.

    ``c`` [B, D] is the condition of a conditional model. Noise levels are those of the Karras grid,
    rho = 7.
    """
    levels = karras_grid(steps, **_ends(model), rho=7.0)
    x = levels[0].item() * z
    for s, after in itertools.pairwise(levels):
        width, here = (after - s).item(), _slope(model, x, s, c)
        there = _slope(model, x + width * here, after, c)
        x = x + width * (here + there) / 2
    return x - levels[-1].item() * _slope(model, x, levels[-1], c)


def dpm_solver(model: Denoiser, z: Tensor, steps: int, c: Tensor | None = None) -> Tensor:
    """Turn noise ``z`` into images, as `heun` does, in ``steps`` network calls.

    Single steps are of order 3 as far as ``steps`` allows, the last ones of lower order; logarithms
    of noise levels are evenly spaced, as the authors advise for small images.
    """
    import rrcm.core.torchvision_stub  # noqa: F401, I001 (diffusers imports torchvision)
    from diffusers.schedulers.scheduling_dpmsolver_singlestep import DPMSolverSinglestepScheduler

    ends = _ends(model)
    top, bottom = math.log(ends["t_max"]), math.log(ends["t_min"])
    levels = torch.linspace(top, bottom, steps, dtype=torch.float64).exp()
    with warnings.catch_warnings():  # diffusers may remove this method; NumPy warns too
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        solver = DPMSolverSinglestepScheduler(
            solver_order=3,
            algorithm_type="dpmsolver",
            lower_order_final=True,
            final_sigmas_type="sigma_min",
        )
        solver.set_timesteps(steps - 1)
    solver.sigmas = levels  # replaces the levels of the solver's own schedule
    solver.set_begin_index(0)
    x = levels[0].item() * z
    for s, after, t in zip(levels[:-1], levels[1:], solver.timesteps, strict=True):
        # The solver works on x / sqrt(1 + s^2), the coordinates of a VP process.
        before, behind = (math.sqrt(1 + level.item() ** 2) for level in (s, after))
        epsilon = _slope(model, x, s, c)
        x = behind * solver.step(epsilon, t, x / before).prev_sample
    return x - levels[-1].item() * _slope(model, x, levels[-1], c)


def _ends(model: Denoiser) -> dict[str, float]:
    """Noise levels where sampling starts and ends: EDM's, clipped to the range of a VP schedule."""
    low, high = LEVELS
    if model.times.discrete:
        known = model.times.levels
        low, high = max(low, known[0].item()), min(high, known[-1].item())
    return {"t_min": low, "t_max": high}


def _slope(model: Denoiser, x: Tensor, s: Tensor, c: Tensor | None) -> Tensor:
    """dx / ds at level ``s`` [], the predicted noise: x - s dx / ds is the clean image."""
    clean, _ = model(x, model.times.at(s.to(x.device), "exact"), c)
    return (x - clean) / s.item()


SAMPLERS = {"heun": heun, "dpm_solver": dpm_solver}


def load(
    cfg: Generation, shape: tuple[int, ...], *, device: str
) -> tuple[Denoiser, Condition | None]:
    """The diffusion model of ``cfg`` for images of ``shape`` [C, H, W], and its condition or None.

    Raises:
        ConfigError: The denoiser has no noise schedule, is for images of another shape, or does not
            fit ``cfg.condition``.
        CheckpointError: A file is missing or damaged.
    """
    model, config = denoiser.load(Path(cfg.denoiser))
    if not isinstance(model, Denoiser):
        raise ConfigError(
            f"denoiser: {cfg.denoiser} is no diffusion model, it has no noise schedule; name one "
            "that was trained with `objective: diffusion`"
        )
    own = config["shape"]
    picture_shape = [own["channels"], own["image_size"], own["image_size"]]
    if picture_shape != [*shape]:
        raise ConfigError(
            f"denoiser: {cfg.denoiser} makes pictures [C, H, W] = {picture_shape}, the data are "
            f"{[*shape]}"
        )
    if bool(own.get("condition")) != (cfg.condition != NONE):
        asked = "represented/<name>" if own.get("condition") else NONE
        raise ConfigError(f"condition: {cfg.denoiser} asks for {asked}; got {cfg.condition}")
    if cfg.condition == NONE:
        return model.to(device), None
    told = condition.load(Path(cfg.condition), device=device)
    if len(told.mean) != own["condition"]:
        raise ConfigError(
            f"condition: {cfg.denoiser} is told {own['condition']} numbers, {cfg.condition} gives "
            f"{len(told.mean)}"
        )
    return model.to(device), told


def generate(
    model: Denoiser,
    cfg: Generation,
    shape: tuple[int, ...],
    *,
    max_value: int,
    told: Condition | None = None,
) -> Iterator[np.ndarray]:
    """Generate ``cfg.images`` images in batches, uint8 [n, C, H, W], with pixels 0 … max_value.

    Images are rounded to the grey levels of the data. ``told`` computes the condition of a
    conditional model, from noise independent of the initial noise of sampling.
    """
    for start in range(0, cfg.images, cfg.batch_size):
        empty = torch.empty(min(cfg.batch_size, cfg.images - start), *shape)
        z, of_condition = _noise(model, cfg, empty, first=start)
        with torch.no_grad():
            c = None if told is None else told.of_noise(of_condition)
            x = SAMPLERS[cfg.sampler](model, z, cfg.steps, c)
        yield as_pictures(x, max_value=max_value)


def levels(told: Condition) -> list[float]:
    """Noise level t of each column of `from_images`, geometric from t_min to t_max."""
    return np.geomspace(told.t_min, told.t_max, COLUMNS).tolist()


def from_images(
    model: Denoiser, cfg: Generation, x: Tensor, *, max_value: int, told: Condition
) -> np.ndarray:
    """Generate images conditioned on representations of real images at increasing noise levels.

    Guarantee: all images of row i start from the same noise as image i of `generate`, and their
    conditions are those of real image i plus the same noise eps_i (which alone is the condition of
    `generate`), scaled to the column's level. So only the condition differs within a row.

    Args:
        model: A conditional model.
        cfg: Sampler, seed and batch size.
        x: Clean pixels in [0, 1], [B, C, H, W].
        max_value: The grey level of 1.0.
        told: Computes the conditions.

    Returns:
        uint8 [B, `COLUMNS`, C, H, W].
    """
    rows = []
    for start in range(0, len(x), cfg.batch_size):
        some = x[start : start + cfg.batch_size]
        z, eps = _noise(model, cfg, some, first=start)
        row = []
        for t in levels(told):
            with torch.no_grad():
                c = told.of_noisy(some.to(eps.device), eps, t=t)
                generated = SAMPLERS[cfg.sampler](model, z, cfg.steps, c)
            row.append(as_pictures(generated, max_value=max_value))
        rows.append(np.stack(row, axis=1))
    return np.concatenate(rows)


def _noise(model: Denoiser, cfg: Generation, like: Tensor, *, first: int) -> list[Tensor]:
    """The initial noise of images from ``first`` on, and the noise of their conditions."""
    device = next(model.parameters(), torch.empty(0)).device
    draw = Draws(cfg.seed, 0, first=first, purpose="generate")
    return [draw.normal(like).to(device) for _ in range(2)]


def as_pictures(x: Tensor, *, max_value: int) -> np.ndarray:
    """Round images in model space to grey levels 0 … ``max_value``, uint8."""
    return (units.to_pixels(x.clamp(-1, 1)) * max_value).round().to(torch.uint8).cpu().numpy()
