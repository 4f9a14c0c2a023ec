r"""Pictures from noise, by a diffusion model.

In the coordinates of rrcm/diffusion.py a picture is carried from much noise to none along

.. math:: \frac{\mathrm d x}{\mathrm d s} = \frac{x - \hat x_0(x, s)}{s}

(Song et al., 2021, arXiv:2011.13456; Karras et al., 2022, arXiv:2206.00364). ``dpm_solver`` is
DPM-Solver (Lu et al., 2022, arXiv:2206.00927) of order 3 from diffusers, ``heun`` the second-order
method of Karras et al. Either takes any schedule, between whose times the logarithm of the noise is
interpolated, and ends with the clean image that the network sees at the least noise.

Guarantee: the same seed gives the same pictures on the same kind of machine; picture i starts from
noise of its own, however many there are and in whatever batches.
"""

import itertools
import math
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rrcm import condition, denoiser, noise, schedules
from rrcm.condition import Condition
from rrcm.config import NOTHING
from rrcm.diffusion import Denoiser
from rrcm.draws import Draws
from rrcm.errors import ConfigError
from rrcm.experiments import Generation

LEVELS = (0.002, 80.0)  # noise in model space that sampling ends and starts at (Karras et al.)
COLUMNS = 8  # noise levels of `from_images`


def heun(model: Denoiser, z: Tensor, steps: int, c: Tensor | None = None) -> Tensor:
    """Carry noise ``z`` [B, C, H, W] to pictures in model space, by 2 ``steps`` - 1 calls.

    ``c`` [B, D] is the condition of a conditional model. Noise levels are those of the Karras grid,
    rho = 7.
    """
    levels = schedules.karras_grid(steps, **_ends(model), rho=7.0)
    x = levels[0].item() * z
    for s, after in itertools.pairwise(levels):
        width, here = (after - s).item(), _slope(model, x, s, c)
        there = _slope(model, x + width * here, after, c)
        x = x + width * (here + there) / 2
    return x - levels[-1].item() * _slope(model, x, levels[-1], c)


def dpm_solver(model: Denoiser, z: Tensor, steps: int, c: Tensor | None = None) -> Tensor:
    """Carry noise ``z`` to pictures, as `heun` does, by ``steps`` calls.

    Single steps of order 3 as far as ``steps`` allows, the last ones of lower order; logarithms of
    noise levels are evenly spaced, as the authors advise for small pictures.
    """
    import rrcm.models._torchvision  # noqa: F401, I001 (diffusers imports torchvision)
    from diffusers.schedulers.scheduling_dpmsolver_singlestep import DPMSolverSinglestepScheduler

    ends = _ends(model)
    top, bottom = math.log(ends["t_max"]), math.log(ends["t_min"])
    levels = torch.linspace(top, bottom, steps, dtype=torch.float64).exp()
    with warnings.catch_warnings():  # that a later diffusers may leave the method out, and NumPy
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        solver = DPMSolverSinglestepScheduler(
            solver_order=3,
            algorithm_type="dpmsolver",
            lower_order_final=True,
            final_sigmas_type="sigma_min",
        )
        solver.set_timesteps(steps - 1)
    solver.sigmas = levels  # of any schedule, where its own would be those of one
    solver.set_begin_index(0)
    x = levels[0].item() * z
    for s, after, t in zip(levels[:-1], levels[1:], solver.timesteps, strict=True):
        # The solver's picture is x / sqrt(1 + s^2), as a VP process has it.
        before, behind = (math.sqrt(1 + level.item() ** 2) for level in (s, after))
        epsilon = _slope(model, x, s, c)
        x = behind * solver.step(epsilon, t, x / before).prev_sample
    return x - levels[-1].item() * _slope(model, x, levels[-1], c)


def _ends(model: Denoiser) -> dict[str, float]:
    """Where sampling starts and ends: EDM's levels, but none beyond those of a VP schedule."""
    low, high = LEVELS
    if model.times.discrete:
        known = model.times.levels
        low, high = max(low, known[0].item()), min(high, known[-1].item())
    return {"t_min": low, "t_max": high}


def _slope(model: Denoiser, x: Tensor, s: Tensor, c: Tensor | None) -> Tensor:
    """dx / ds at level ``s`` [], the predicted noise: x without s times it is the clean image."""
    clean, _ = model(x, model.times.at(s.to(x.device), "exact"), c)
    return (x - clean) / s.item()


SAMPLERS = {"heun": heun, "dpm_solver": dpm_solver}


def load(
    cfg: Generation, shape: tuple[int, ...], *, device: str
) -> tuple[Denoiser, Condition | None]:
    """The diffusion model of ``cfg``, of pictures of ``shape`` [C, H, W], and what it is told of.

    Raises:
        ConfigError: It is no diffusion model, not one of such pictures, or is told a condition that
            there is not, or the reverse.
        CheckpointError: It is missing or damaged.
    """
    found, config = denoiser.load(Path(cfg.denoiser))
    if not isinstance(found, Denoiser):
        raise ConfigError(
            f"denoiser: {cfg.denoiser} is no diffusion model, it has no noise schedule; name one "
            "that was trained with `objective: diffusion`"
        )
    own = config["shape"]
    made = [own["channels"], own["image_size"], own["image_size"]]
    if made != [*shape]:
        raise ConfigError(
            f"denoiser: {cfg.denoiser} makes pictures [C, H, W] = {made}, the data are {[*shape]}"
        )
    if bool(own.get("condition")) != (cfg.condition != NOTHING):
        asked = "represented/<name>" if own.get("condition") else NOTHING
        raise ConfigError(f"condition: {cfg.denoiser} asks for {asked}; got {cfg.condition}")
    if cfg.condition == NOTHING:
        return found.to(device), None
    told = condition.load(Path(cfg.condition), device=device)
    if len(told.mean) != own["condition"]:
        raise ConfigError(
            f"condition: {cfg.denoiser} is told {own['condition']} numbers, {cfg.condition} gives "
            f"{len(told.mean)}"
        )
    return found.to(device), told


def generate(
    model: Denoiser,
    cfg: Generation,
    shape: tuple[int, ...],
    *,
    white: int,
    told: Condition | None = None,
) -> Iterator[np.ndarray]:
    """``cfg.images`` pictures in batches, uint8 [n, C, H, W], of which ``white`` is 1.0.

    They are rounded to as many grey levels as the data have, so that pictures of both are alike.
    ``told`` makes the condition of a conditional model, of other noise than sampling starts from.
    """
    for start in range(0, cfg.images, cfg.batch_size):
        empty = torch.empty(min(cfg.batch_size, cfg.images - start), *shape)
        z, of_condition = _noise(model, cfg, empty, first=start)
        with torch.no_grad():
            c = None if told is None else told.of_noise(of_condition)
            x = SAMPLERS[cfg.sampler](model, z, cfg.steps, c)
        yield as_pictures(x, white=white)


def levels(told: Condition) -> list[float]:
    """The noise in model space of each column of `from_images`: geometric, t_min to t_max."""
    return np.geomspace(told.t_min, told.t_max, COLUMNS).tolist()


def from_images(
    model: Denoiser, cfg: Generation, x: Tensor, *, white: int, told: Condition
) -> np.ndarray:
    """What a conditional model makes of the representations of images with ever more noise.

    Guarantee: all pictures of row i start from the noise that picture i of `generate` starts from,
    and are told of image i with the same noise eps_i, times the level of the column: the noise that
    `generate` tells picture i of, alone. So only the condition differs within a row.

    Args:
        model: A conditional model.
        cfg: Sampler, seed and batch size.
        x: Clean pixels in [0, 1], [B, C, H, W].
        white: The grey level of 1.0.
        told: What makes the condition.

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
                found = SAMPLERS[cfg.sampler](model, z, cfg.steps, c)
            row.append(as_pictures(found, white=white))
        rows.append(np.stack(row, axis=1))
    return np.concatenate(rows)


def _noise(model: Denoiser, cfg: Generation, like: Tensor, *, first: int) -> list[Tensor]:
    """What pictures from ``first`` on start from, and the noise that their condition is of."""
    device = next(model.parameters(), torch.empty(0)).device
    draw = Draws(cfg.seed, 0, first=first, purpose="generate")
    return [draw.normal(like).to(device) for _ in range(2)]


def as_pictures(x: Tensor, *, white: int) -> np.ndarray:
    """Model space to whole grey levels 0 … ``white``, uint8."""
    return (noise.to_pixels(x.clamp(-1, 1)) * white).round().to(torch.uint8).cpu().numpy()
