"""How far made pictures are from real ones: a Fréchet distance in a space of features, and copies.

Features are what the head of one of our runs reads, of clean pictures, or the pooled features of
torch-fidelity's Inception, with which the distance is the FID of Heusel et al. (2017),
arXiv:1706.08500. The distance does not see whether pictures are copies of training images, so that
the median distance to the nearest training image stands beside it.
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

from rrcm import classifier, frechet, untrusted
from rrcm.draws import Draws
from rrcm.errors import CheckpointError, ConfigError, one_line
from rrcm.experiments import Generation
from rrcm.generate import as_pictures
from rrcm.shards import Split

COMPARED = 1000  # pictures of which the nearest training image is looked for
BROKEN = (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError)
Features = Callable[[Tensor], Tensor]  # pixels [B, C, H, W] in [0, 1] to features [B, D]


def features(cfg: Generation, shape: tuple[int, ...], *, device: str) -> Features:
    """Where pictures are compared: what a run's head reads, or the pooled features of Inception.

    Raises:
        ConfigError: ``cfg.features`` is neither, or does not take pictures of ``shape`` [C, H, W].
        CheckpointError: It is damaged.
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
    """The representation that the head of a run reads, of clean pictures, told the run's sigma."""
    network, config = classifier.load(folder)
    own = config["model"]["shape"]
    taken = (own["channels"], own["image_size"], own["image_size"])
    if taken != tuple(shape):
        raise ConfigError(
            f"features: {folder} takes pictures [C, H, W] = {[*taken]}, the data are {[*shape]}"
        )
    network.head = nn.Identity()
    network.to(device)
    return classifier.Told(network, config["sigma"]).to(device)


def _of_inception(path: Path, shape: tuple[int, ...], *, device: str) -> Features:
    """The 2048 pooled features of torch-fidelity's Inception, of pictures of 8 bits a colour."""
    if shape[0] != 3:
        raise ConfigError(
            f"features: Inception looks at pictures of three colours, the data have {shape[0]}; "
            "name a folder models/<run>"
        )
    weights = untrusted.load(path, hint="docs/generation.md says where they are")
    import rrcm.models._torchvision  # noqa: F401, I001 (torch-fidelity imports torchvision)
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    with _weights(path), tempfile.NamedTemporaryFile(suffix=".pth") as file:
        torch.save(weights, file.name)  # torch-fidelity loads any pickle: one of ours, then
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
    pictures: Iterable[np.ndarray], *, white: int, of: Features, device: str
) -> frechet.Moments:
    """Moments of the features of pictures that come in batches, [n, C, H, W] with this white."""

    def batch(images: np.ndarray) -> np.ndarray:
        pixels = torch.from_numpy(images.astype(np.float32) / np.float32(white))
        with torch.no_grad():
            return of(pixels.to(device)).double().cpu().numpy()

    return frechet.moments(batch(images) for images in pictures)


def measure(
    made: np.ndarray, data: dict[str, Split], cfg: Generation, *, of: Features, device: str
) -> dict[str, Any]:
    """Fréchet distances to all test images in the space ``of``, and how many images are behind.

    Beside ``made`` there are two yardsticks: as many ``train`` images, as far as there are so many,
    and as many of ``noise``, that is, the standard normal numbers that sampling starts from, shown
    as pictures. ``bias`` is how much of each distance is due to these numbers of images.
    ``nearest`` is as `nearest` says, to these training images.
    """
    white, size = data["train"].white, cfg.batch_size
    train, test = (data[name].images for name in ("train", "test"))
    counts = {"generated": len(made), "train": min(len(made), len(train))}
    counts |= {"noise": len(made), "test": len(test)}

    def noisy(rows: slice) -> np.ndarray:
        draw = Draws(cfg.seed, 0, first=rows.start, purpose="generate")
        empty = torch.empty(rows.stop - rows.start, *made.shape[1:])
        return as_pictures(draw.normal(empty), white=white)

    taken = {
        "generated": made.__getitem__,
        "train": train.__getitem__,
        "noise": noisy,
        "test": test.__getitem__,
    }

    def batches(name: str) -> Iterator[np.ndarray]:
        for start in range(0, counts[name], size):
            yield taken[name](slice(start, min(start + size, counts[name])))

    found = {name: moments(batches(name), white=white, of=of, device=device) for name in counts}
    apart = {
        name: nearest(images[:COMPARED], batches("train"), white=white, device=device)
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


def nearest(images: np.ndarray, train: Iterable[np.ndarray], *, white: int, device: str) -> float:
    """The median over ``images`` of the l2 distance to the nearest training image, in pixels.

    Of pixels in [0, 1]. Copies are nearer to training images than test images are.
    """

    def flat(some: np.ndarray) -> Tensor:
        return torch.from_numpy(some.astype(np.float32) / np.float32(white)).flatten(1).to(device)

    ours = flat(images)
    least = torch.full((len(ours),), torch.inf, device=device)
    for batch in train:
        exact = "donot_use_mm_for_euclid_dist"  # or copies would be 1e-3 away from themselves
        least = least.minimum(torch.cdist(ours, flat(batch), compute_mode=exact).amin(dim=1))
    return float(least.double().cpu().median())
