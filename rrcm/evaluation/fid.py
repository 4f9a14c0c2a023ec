"""Quality of generated images: their Fréchet distance from real ones, and nearest neighbours.

Features are the input of a run's classifier head, for clean images, or the pooled features of
torch-fidelity's Inception, which make the distance the FID of Heusel et al. (2017),
arXiv:1706.08500. The Fréchet distance does not reveal copies of training images, so the median
distance to the nearest training image is reported beside it.
"""

import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rrcm.config.evaluation import Generation
from rrcm.core.errors import CheckpointError, ConfigError, one_line
from rrcm.data.splits.shards import Split
from rrcm.diffusion.sampling import as_pictures
from rrcm.evaluation import frechet
from rrcm.models import state_dict
from rrcm.models.trained.base import classifier
from rrcm.training.engine.draws import Draws

COMPARED = 1000  # generated images whose nearest training image is searched
BROKEN = (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError)
Features = Callable[[Tensor], Tensor]  # pixels [B, C, H, W] in [0, 1] to features [B, D]


def features(cfg: Generation, shape: tuple[int, ...], *, device: str) -> Features:
    """Feature extractor of the Fréchet distance: a run without its head, or Inception.

    Raises:
        ConfigError: ``cfg.features`` is neither, or does not take pictures of ``shape`` [C, H, W].
        CheckpointError: The file is damaged.
    """
    path = Path(cfg.features)
    if path.is_dir():
        return _of_run(path, shape, device=device)
    if path.is_file():
        return _of_inception(path, shape, device=device)
    raise ConfigError(
        f"features: {path} is not here; name a folder models/<run> that `dvc repro` makes, or a "
        "file with the weights of torch-fidelity's Inception, as docs/generation.md says"
    )


def _of_run(folder: Path, shape: tuple[int, ...], *, device: str) -> Features:
    """Representations of clean images by a run's encoder, conditioned on the run's sigma."""
    network, config = classifier.load(folder)
    own = config["model"]["shape"]
    taken = (own["channels"], own["image_size"], own["image_size"])
    if taken != tuple(shape):
        raise ConfigError(
            f"features: {folder} takes pictures [C, H, W] = {[*taken]}, the data are {[*shape]}"
        )
    network.add_module("head", nn.Identity())  # replaces the head
    network.to(device)
    return network.fix(config["sigma"]).to(device)


def _of_inception(path: Path, shape: tuple[int, ...], *, device: str) -> Features:
    """The 2048 pooled features of torch-fidelity's Inception, of images with 8 bits a channel."""
    if shape[0] != 3:
        raise ConfigError(
            f"features: Inception looks at pictures of three colours, the data have {shape[0]}; "
            "name a folder models/<run>"
        )
    weights = state_dict.load(path, hint="docs/generation.md says where they are")
    import rrcm.core.torchvision_stub  # noqa: F401, I001 (torch-fidelity imports torchvision)
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    with _weights(path), tempfile.NamedTemporaryFile(suffix=".pth") as file:
        torch.save(weights, file.name)  # torch-fidelity unpickles the file: pass our own
        network = FeatureExtractorInceptionV3("inception", ["2048"], file.name).to(device)
    return lambda x: network((x * 255).round().to(torch.uint8))[0]


@contextmanager
def _weights(path: Path) -> Iterator[None]:
    try:
        yield
    except BROKEN as error:
        raise CheckpointError(
            f"{path}: no weights of torch-fidelity's Inception ({one_line(error)[:80]})"
        ) from None


def moments(
    pictures: Iterable[np.ndarray], *, max_value: int, of: Features, device: str
) -> frechet.Moments:
    """Moments of the features of batches of pictures, [n, C, H, W], with pixels 0 … max_value."""

    def batch(images: np.ndarray) -> np.ndarray:
        pixels = torch.from_numpy(images.astype(np.float32) / np.float32(max_value))
        with torch.no_grad():
            return of(pixels.to(device)).double().cpu().numpy()

    return frechet.moments(batch(images) for images in pictures)


def measure(
    made: np.ndarray, data: dict[str, Split], cfg: Generation, *, of: Features, device: str
) -> dict[str, Any]:
    """Fréchet distances from the test images in the feature space ``of``, with image counts.

    Two references are measured beside ``made``: as many ``train`` images (or all, if fewer), and as
    many images of ``noise``, the standard normal numbers that sampling starts from. ``bias`` is the
    part of each distance due to the finite numbers of images. ``nearest`` has the median distances
    of `nearest`.
    """
    max_value, size = data["train"].max_value, cfg.batch_size
    train, test = (data[name].images for name in ("train", "test"))
    counts = {"generated": len(made), "train": min(len(made), len(train))}
    counts |= {"noise": len(made), "test": len(test)}

    def noisy(rows: slice) -> np.ndarray:
        draw = Draws(cfg.seed, 0, first=rows.start, purpose="generate")
        empty = torch.empty(rows.stop - rows.start, *made.shape[1:])
        return as_pictures(draw.normal(empty), max_value=max_value)

    taken = {
        "generated": made.__getitem__,
        "train": train.__getitem__,
        "noise": noisy,
        "test": test.__getitem__,
    }

    def batches(name: str) -> Iterator[np.ndarray]:
        for start in range(0, counts[name], size):
            yield taken[name](slice(start, min(start + size, counts[name])))

    found = {
        name: moments(batches(name), max_value=max_value, of=of, device=device) for name in counts
    }
    apart = {
        name: nearest(images[:COMPARED], batches("train"), max_value=max_value, device=device)
        for name, images in (("generated", made), ("test", test))
    }
    real = found.pop("test")
    return {
        "features": cfg.features,
        "dimensions": len(real.mean),
        "images": counts,
        "frechet": {name: frechet.distance(each, real) for name, each in found.items()},
        "bias": {name: frechet.bias(each, real) for name, each in found.items()},
        "nearest": apart,
    }


def nearest(
    images: np.ndarray, train: Iterable[np.ndarray], *, max_value: int, device: str
) -> float:
    """Median over ``images`` of the L2 distance to the nearest training image, pixels in [0, 1].

    Copies of training images are nearer to them than test images are.
    """

    def flat(some: np.ndarray) -> Tensor:
        return (
            torch.from_numpy(some.astype(np.float32) / np.float32(max_value)).flatten(1).to(device)
        )

    ours = flat(images)
    least = torch.full((len(ours),), torch.inf, device=device)
    for batch in train:
        exact = "donot_use_mm_for_euclid_dist"  # else copies would be at distance 1e-3
        least = least.minimum(torch.cdist(ours, flat(batch), compute_mode=exact).amin(dim=1))
    return float(least.double().cpu().median())
