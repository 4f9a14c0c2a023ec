r"""Linear probe of an encoder, and the Fréchet distance between its representations.

A linear head is trained on representations of clean images, as in the appendix of Lei et al.
(2025), or of images with the noise of one sigma, and tested on noisy ones (`accuracies`). The
Fréchet distance between representations of pure noise and of clean images measures how similar both
ends of a diffusion trajectory are (`distance`). Representations are the encoder's output, the input
of a classifier's head; the projector of pre-training is not kept. Noise levels t are in model
space, sigma = t / 2 in pixels.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import nn

from rrcm.config.evaluation import Representation
from rrcm.config.sections import Model
from rrcm.core import registry
from rrcm.core.errors import TrainingError
from rrcm.core.schema import parse
from rrcm.data.splits.shards import Split
from rrcm.evaluation import frechet
from rrcm.models.trained.base import checkpoint
from rrcm.noise import streams, units

ROWS = 65536  # rows whose scores are held in memory at a time
ITERATIONS = 2000  # maximum for L-BFGS
GRADIENT = 1e-6  # largest entry of the gradient at the minimum
PROBE, CLEAN, NOISE, TRAIN = range(4)  # draw number of an image's noise for each purpose


def load_encoder(folder: Path, model: Model, *, device: str = "cpu") -> nn.Module:
    """Load the pre-trained encoder in ``folder``, in evaluation mode and frozen.

    Raises:
        CheckpointError: The file is missing, damaged, or not of ``model``.
    """
    module = registry.load("networks", model.architecture)
    encoder = module.Encoder(parse(model.shape, module.Config, where="models: shape"))
    path = folder / "encoder.safetensors"
    checkpoint.restore(encoder, checkpoint.load(path)[0], source=str(path))
    return encoder.to(device).eval().requires_grad_(False)


def encode(
    encoder: nn.Module, split: Split, cfg: Representation, *, t: float, draw: int | None, rows: int
) -> Iterator[np.ndarray]:
    """Representations of the first ``rows`` images at noise level ``t``, float32 [n, D] each.

    Noise with standard deviation t / 2 in pixel units is added, with draw number ``draw`` of
    ``cfg.seed``: the same at every t except for its scale. None adds no noise.
    """
    device = next(encoder.parameters()).device
    sigma = units.to_sigma(torch.tensor(t, dtype=torch.float32))
    for start in range(0, rows, cfg.batch_size):
        chosen = slice(start, min(start + cfg.batch_size, rows))
        x = torch.from_numpy(split.pixels(chosen))
        if draw is not None:
            images = torch.from_numpy(split.idx[chosen])
            draws, stream = torch.full_like(images, draw), streams.VALIDATE
            x = x + sigma * streams.gaussian(cfg.seed, images, draws, x.shape[1:], stream=stream)
        with torch.no_grad():
            yield encoder(x.to(device), sigma.to(device)).cpu().numpy()


def probe(
    features: np.ndarray, labels: np.ndarray, *, classes: int, penalty: float, entropy: float
) -> tuple[np.ndarray, np.ndarray]:
    r"""Weights [K, D] and biases [K] of the linear head that minimises, over rows of ``features``,

    .. math:: \frac1N \sum_i \left( - \log p_i(y_i) + \lambda_H H(p_i) \right)
        + \frac\lambda2 \lVert W \rVert^2, \qquad p_i = \mathrm{softmax}(W h_i + b)

    with the ``penalty`` :math:`\lambda` and the weight ``entropy`` :math:`\lambda_H`. L-BFGS in
    float64 starts from zeros; the same input gives the same head on the same machine. Without the
    entropy this is multinomial logistic regression, whose minimum is unique; with it, L-BFGS finds
    a minimum near zeros.

    Raises:
        TrainingError: L-BFGS does not reach a minimum.
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
        assert head.grad is not None  # set by backward
        return value, head.grad.numpy().ravel().copy()

    start, limits = np.zeros(shape).ravel(), {"maxiter": ITERATIONS, "gtol": GRADIENT, "ftol": 0.0}
    optimum = minimize(loss, start, jac=True, method="L-BFGS-B", options=limits)
    if np.abs(optimum.jac).max() > 10 * GRADIENT:  # L-BFGS may stop near its tolerance
        raise TrainingError(
            f"the linear probe has no minimum after {optimum.nit} iterations; raise penalty "
            f"({penalty:g})"
        )
    head = optimum.x.reshape(shape)
    return head[:, :-1], head[:, -1]


def accuracies(
    encoder: nn.Module, data: dict[str, Split], cfg: Representation
) -> list[dict[str, float]]:
    """Accuracy on noisy images of ``cfg.split``, of a probe of ``train`` images, for each sigma.

    One noisy version of each image, also of training images where ``cfg.train_sigma`` is not 0; at
    sigma 0 the encoder's noise level is ``cfg.t_min``.
    """
    train, test = data["train"], data[cfg.split]

    def features(split: Split, sigma: float, draw: int) -> np.ndarray:
        t, noise = (units.to_time(sigma), draw) if sigma else (cfg.t_min, None)
        parts = encode(encoder, split, cfg, t=t, draw=noise, rows=len(split.labels))
        return np.concatenate([*parts])

    weights, biases = probe(
        features(train, cfg.train_sigma, TRAIN),
        train.labels,
        classes=len(train.classes),
        penalty=cfg.penalty,
        entropy=cfg.entropy,
    )
    rows = []
    for sigma in cfg.sigmas:
        scores = features(test, sigma, PROBE).astype(np.float64) @ weights.T + biases
        right, images = int((scores.argmax(axis=1) == test.labels).sum()), len(test.labels)
        rows.append({"sigma": sigma, "right": right, "images": images, "accuracy": right / images})
    return rows


def distance(encoder: nn.Module, split: Split, cfg: Representation) -> dict[str, Any]:
    """The Fréchet distance between representations at ``cfg.t_max`` and at ``cfg.t_min``.

    Over the first ``cfg.images`` images, or all if there are fewer, each with its own noise.
    ``bias`` is the part of the distance due to their finite number.
    """
    rows = min(cfg.images, len(split.labels))
    mean, std = _scale(encoder, split, cfg) if cfg.normalised else (0.0, 1.0)

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


def _scale(encoder: nn.Module, split: Split, cfg: Representation) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation [D] of representations of all clean images of ``split``.

    The standard deviation is 1 where a dimension is constant.
    """
    rows = len(split.labels)
    clean = frechet.moments(encode(encoder, split, cfg, t=cfg.t_min, draw=None, rows=rows))
    std = np.sqrt(clean.covariance.diagonal())
    return clean.mean, np.where(std > 0, std, 1.0)
