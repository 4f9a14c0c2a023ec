r"""What an encoder's representations tell.

The appendix of Lei et al. (2025): a linear head trained on the representations of clean images is
tried on noisy ones (`accuracies`), and the Fréchet distance between representations of pure noise
and of clean images says whether both ends of a diffusion trajectory are represented alike
(`distance`). Representations are the encoder's output, which is what a classifier's head reads; the
projector of pre-training is not kept. Noise levels t are in model space, sigma = t / 2 in pixels.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import nn

from rrcm import checkpoints, condition, frechet, noise
from rrcm.config import Model
from rrcm.errors import TrainingError
from rrcm.experiments import Representation
from rrcm.shards import Split

ROWS = 65536  # of features whose scores are held at a time: memory
ITERATIONS = 2000  # of L-BFGS at the most
GRADIENT = 1e-6  # largest entry of the gradient at which the head is trained
PROBE, CLEAN, NOISE = range(3)  # draws of an image's noise, one for each purpose


def load_encoder(folder: Path, model: Model, *, device: str = "cpu") -> nn.Module:
    """The encoder of the pre-training in ``folder``, in evaluation mode, frozen.

    Raises:
        CheckpointError: It is missing, damaged, or not of ``model``.
    """
    encoder = condition.encoder(model)
    path = folder / "encoder.safetensors"
    checkpoints.restore(encoder, checkpoints.load(path)[0], source=str(path))
    return encoder.to(device).eval().requires_grad_(False)


def encode(
    encoder: nn.Module, split: Split, cfg: Representation, *, t: float, draw: int | None, rows: int
) -> Iterator[np.ndarray]:
    """Representations of the first ``rows`` images at noise level ``t``, float32 [n, D] each.

    Noise of the standard deviation t / 2 in pixel units is added, of the draw ``draw`` of
    ``cfg.seed``: the same at every t, but for its size. Without a draw there is none.
    """
    device = next(encoder.parameters()).device
    sigma = noise.to_sigma(torch.tensor(t, dtype=torch.float32))
    for start in range(0, rows, cfg.batch_size):
        chosen = slice(start, min(start + cfg.batch_size, rows))
        x = torch.from_numpy(split.pixels(chosen))
        if draw is not None:
            images = torch.from_numpy(split.idx[chosen])
            draws = torch.full_like(images, draw)
            shape = tuple(x.shape[1:])
            x = x + sigma * noise.gaussian(cfg.seed, images, draws, shape, stream=noise.VALIDATE)
        with torch.no_grad():
            yield encoder(x.to(device), sigma.to(device)).cpu().numpy()


def probe(
    features: np.ndarray, labels: np.ndarray, *, classes: int, penalty: float, entropy: float
) -> tuple[np.ndarray, np.ndarray]:
    r"""Weights [K, D] and biases [K] of the linear head that minimises, over rows of ``features``,

    .. math:: \frac1N \sum_i \left( - \log p_i(y_i) + \lambda_H H(p_i) \right)
        + \frac\lambda2 \lVert W \rVert^2, \qquad p_i = \mathrm{softmax}(W h_i + b)

    with the ``penalty`` :math:`\lambda` and the weight ``entropy`` :math:`\lambda_H`. From zeros,
    by L-BFGS in float64: the same input, the same head on the same machine. Without the entropy the
    minimum is the only one, multinomial logistic regression; with it, one that is near zeros.

    Raises:
        TrainingError: It is not reached.
    """
    h, y = torch.from_numpy(features), torch.from_numpy(labels)
    shape = (classes, features.shape[1] + 1)

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        head = torch.from_numpy(flat.reshape(shape)).clone().requires_grad_(True)
        total = penalty / 2 * head[:, :-1].square().sum()
        total.backward()
        value = total.item()
        for some, of in zip(h.split(ROWS), y.split(ROWS), strict=True):
            scores = F.linear(some.double(), head[:, :-1], head[:, -1])
            likely = scores.log_softmax(dim=1)
            uncertain = -(likely.exp() * likely).sum()
            part = (F.nll_loss(likely, of, reduction="sum") + entropy * uncertain) / len(h)
            part.backward()
            value += part.item()
        return value, head.grad.numpy().ravel().copy()

    start, limits = np.zeros(shape).ravel(), {"maxiter": ITERATIONS, "gtol": GRADIENT, "ftol": 0.0}
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options=limits)
    if np.abs(found.jac).max() > 10 * GRADIENT:  # ends of a line search come close enough
        raise TrainingError(
            f"the linear probe has no minimum after {found.nit} iterations; raise penalty "
            f"({penalty:g})"
        )
    head = found.x.reshape(shape)
    return head[:, :-1], head[:, -1]


def accuracies(
    encoder: nn.Module, data: dict[str, Split], cfg: Representation
) -> list[dict[str, float]]:
    """How many ``test`` images a probe of ``train`` images is right about, a row for each sigma.

    One noisy version of each image; where sigma is 0, the encoder is told ``cfg.t_min``.
    """
    train, test = data["train"], data["test"]

    def features(split: Split, t: float, draw: int | None) -> np.ndarray:
        return np.concatenate(
            [*encode(encoder, split, cfg, t=t, draw=draw, rows=len(split.labels))]
        )

    weights, biases = probe(
        features(train, cfg.t_min, None),
        train.labels,
        classes=len(train.classes),
        penalty=cfg.penalty,
        entropy=cfg.entropy,
    )
    rows = []
    for sigma in cfg.sigmas:
        t, draw = (noise.to_time(sigma), PROBE) if sigma else (cfg.t_min, None)
        scores = features(test, t, draw).astype(np.float64) @ weights.T + biases
        right = int((scores.argmax(axis=1) == test.labels).sum())
        images = len(test.labels)
        rows.append({"sigma": sigma, "right": right, "images": images, "accuracy": right / images})
    return rows


def distance(encoder: nn.Module, split: Split, cfg: Representation) -> dict[str, Any]:
    """The Fréchet distance between representations at ``cfg.t_max`` and at ``cfg.t_min``.

    Of the first ``cfg.images`` images, or all where there are fewer, each with noise of its own.
    ``bias`` is how much of it is due to their number.
    """
    rows = min(cfg.images, len(split.labels))
    mean, std = scale(encoder, split, cfg) if cfg.normalised else (0.0, 1.0)

    def batches(t: float, draw: int) -> Iterator[np.ndarray]:
        for h in encode(encoder, split, cfg, t=t, draw=draw, rows=rows):
            yield (h - mean) / std

    ends = [frechet.moments(batches(t, d)) for t, d in ((cfg.t_max, NOISE), (cfg.t_min, CLEAN))]
    return {
        "distance": frechet.distance(*ends),
        "bias": frechet.bias(*ends),
        "images": rows,
        "dimensions": len(ends[0].mean),
        "normalised": cfg.normalised,
        "t_min": cfg.t_min,
        "t_max": cfg.t_max,
    }


def scale(encoder: nn.Module, split: Split, cfg: Representation) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation [D] of representations of all images of ``split``, clean.

    The latter is 1 where nothing varies.
    """
    rows = len(split.labels)
    found = frechet.moments(encode(encoder, split, cfg, t=cfg.t_min, draw=None, rows=rows))
    std = np.sqrt(found.covariance.diagonal())
    return found.mean, np.where(std > 0, std, 1.0)
