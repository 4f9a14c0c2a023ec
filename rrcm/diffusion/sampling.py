r"""Pictures from a diffusion model: the flow from noise to images, solved by DPM-Solver++.

Lu et al. (2022), arXiv:2211.01095, a multistep method, in the implementation of diffusers. Equation
numbers are those of docs/theory.md.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rrcm.config.generation import Generation
from rrcm.config.sections import NONE
from rrcm.core.errors import ConfigError
from rrcm.core.ranges import require
from rrcm.data.splits.shards import Split
from rrcm.diffusion import condition
from rrcm.diffusion.condition import Condition, Told
from rrcm.models.trained import denoiser
from rrcm.models.trained.denoiser import Denoiser
from rrcm.noise import streams, units
from rrcm.noise.levels import karras_grid

LEVELS = (0.002, 80.0)  # ends of sampling, noise in model space (Karras et al., 2022)
ORDER = 3  # of the solver; its last steps are of lower order
STREAM = streams.VALIDATE
START, CONDITION = range(2)  # draw number of a picture's noise for each purpose


def load(
    cfg: Generation, split: Split, *, device: str = "cpu"
) -> tuple[Denoiser, Condition | None]:
    """The diffusion model of ``cfg`` for images as in ``split``, and its condition, if any.

    Raises:
        ConfigError: It has no noise schedule, or is for images of another shape.
        CheckpointError: A file is missing or damaged.
    """
    model, config = denoiser.load(Path(cfg.denoiser))
    if not isinstance(model, Denoiser):
        why = "has no noise schedule; name one of objective diffusion"
        raise ConfigError(f"generations: denoiser: {cfg.denoiser} {why}")
    shape = tuple(config["shape"][key] for key in ("channels", "image_size", "image_size"))
    require(
        shape == (size := tuple(split.images.shape[1:])),
        f"generations: denoiser: {cfg.denoiser} makes pictures {shape}, channels x height x width, "
        f"and the data are {size}; train one for them",
    )
    if cfg.condition == NONE:
        return model.to(device), None
    return model.to(device), condition.load(Path(cfg.condition), split, device=device)


@torch.no_grad()
def solve(model: Denoiser, z: Tensor, *, steps: int) -> Tensor:
    r"""Images in model space from standard normal ``z`` [B, C, H, W], in ``steps`` network calls.

    .. math:: \frac{\mathrm d x}{\mathrm d s} = \frac{x - \hat x_0(x, s)}{s}

    (eq. 57b) from s = 80 down to 0.002 on the grid of eq. 3, as far as the schedule of ``model``
    goes; the result is the clean image that ``model`` predicts at the last level. A row of the
    result depends on that row of ``z`` alone, up to the rounding of the network.
    """
    solver = _solver(model, steps)
    top = solver.sigmas[0].item()
    x = top / (1 + top**2) ** 0.5 * z  # x / sqrt(1 + s^2), the coordinates of a VP process
    for s, t in zip(solver.sigmas[:-1].double(), solver.timesteps, strict=True):
        clean, _ = model(x * (1 + s.item() ** 2) ** 0.5, model.times.at(s.to(z.device), "exact"))
        x = solver.step(clean, t, x).prev_sample
    return x


def _solver(model: Denoiser, steps: int) -> Any:  # diffusers has no types
    """DPM-Solver++ on ``steps`` noise levels, by the betas of a VP process with just these."""
    from diffusers.schedulers.scheduling_dpmsolver_multistep import DPMSolverMultistepScheduler

    known = model.times.levels[[0, -1]].tolist() if model.times.discrete else LEVELS
    low, high = max(known[0], LEVELS[0]), min(known[1], LEVELS[1])
    levels = karras_grid(steps, t_min=low, t_max=high, rho=7.0)
    kept = 1 / (1 + levels.flip(0) ** 2)  # descending
    betas = 1 - kept / torch.cat([torch.ones(1, dtype=torch.float64), kept[:-1]])
    solver = DPMSolverMultistepScheduler(
        steps, trained_betas=betas.tolist(), prediction_type="sample", solver_order=ORDER
    )
    with warnings.catch_warnings():  # its NumPy is an older one
        warnings.simplefilter("ignore", DeprecationWarning)
        solver.set_timesteps(timesteps=[*range(steps - 1, -1, -1)])
    return solver


@torch.no_grad()
def generate(
    model: Denoiser, cfg: Generation, split: Split, *, told: Condition | None, real: bool, rows: int
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """``rows`` pictures [n, C, H, W] in model space, and their conditions [n, D], in batches.

    Conditions are those of the first images of ``split`` if ``real``, else of pure noise; None for
    a model that is ``told`` nothing. Picture i starts from the same noise whatever its condition,
    independent of the noise in its condition. Both depend on ``cfg.seed`` and i alone.
    """
    device, shape = next(model.parameters()).device, split.images.shape[1:]
    for places in torch.arange(rows).split(cfg.batch_size):
        draws = [torch.full_like(places, draw) for draw in (START, CONDITION)]
        noise = [streams.gaussian(cfg.seed, places, d, shape, stream=STREAM) for d in draws]
        start, other = (z.to(device) for z in noise)
        bound, c = model, None
        if told is not None:
            x = torch.from_numpy(split.pixels(places.numpy())).to(device)
            c = told(x) if real else told.of_noise(other)
            bound = Denoiser(Told(model.network, c), model.times)
        yield solve(bound, start, steps=cfg.steps), c


def pictures(x: Tensor, *, max_value: int) -> np.ndarray:
    """Images in model space as uint8, rounded to the grey levels 0 … ``max_value`` of the data."""
    return (units.to_pixels(x.clamp(-1, 1)) * max_value).round().to(torch.uint8).cpu().numpy()
