"""How far generated pictures are from real ones, and whether they are copies of them.

Pictures are compared by the Fréchet distance (docs/theory.md, eq. 53) between representations of an
encoder of this project, which is no FID: that has the features of Inception. The distance does not
reveal copies of training images; the distance in pixels to the nearest one does.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rrcm.data.splits.shards import Split
from rrcm.diffusion.condition import Condition
from rrcm.evaluation import frechet

COMPARED = 1000  # pictures whose nearest training image is looked for
ROWS = 512  # images that are compared at a time
SIDE, LEAST, GAP = 8, 24, 4  # pairs across and down a grid, pixels of a picture, and between pairs


def distances(
    made: dict[str, np.ndarray], train: Split, test: Split, features: Condition
) -> dict[str, Any]:
    """Fréchet distances from all ``train`` images, of the pictures ``made`` and of real ones.

    ``made`` has uint8 pictures [N, C, H, W] by their kind. The floor is the distance of as many
    images of ``test``. ``bias`` is what of a distance is due to finite numbers (eq. 53a), and
    ``nearest`` the median distance in pixels to the `nearest` training image.
    """
    kinds = made | {"test": test.images[: min(len(images) for images in made.values())]}
    found = {
        kind: frechet.moments(features.of_pictures(images, max_value=train.max_value))
        for kind, images in {"train": train.images, **kinds}.items()
    }
    real = found.pop("train")
    apart = {kind: nearest(images[:COMPARED], train)[1] for kind, images in kinds.items()}
    return {
        "images": {"train": real.count} | {kind: each.count for kind, each in found.items()},
        "dimensions": len(real.mean),
        "frechet": {kind: frechet.distance(each, real) for kind, each in found.items()},
        "bias": {kind: frechet.bias(each, real) for kind, each in found.items()},
        "nearest": {kind: float(np.median(each)) for kind, each in apart.items()},
    }


def heard(made: np.ndarray, told: Condition, conditions: Tensor, train: Split) -> list[float]:
    """Mean squared distance, over dimensions, of pictures' representations to their conditions.

    First to the one [D] that each picture was made for, then to that of the next picture. If the
    model does not listen, both are the same on average.
    """
    shown = np.concatenate([*told.of_pictures(made, max_value=train.max_value)])
    asked = conditions.cpu().numpy()
    return [float(np.square(shown - c).mean()) for c in (asked, np.roll(asked, -1, axis=0))]


def nearest(images: np.ndarray, train: Split) -> tuple[np.ndarray, np.ndarray]:
    """The place in ``train`` of the image nearest to each of ``images``, and its distance, [N].

    The distance is the Euclidean one of pixels in [0, 1]; of equally near images it is the first.
    """
    flat = torch.from_numpy(images.astype(np.float32) / train.max_value).flatten(1)
    least = torch.full((len(flat),), torch.inf)
    place = torch.zeros(len(flat), dtype=torch.int64)
    for first in range(0, len(train.labels), ROWS):
        some = torch.from_numpy(train.pixels(slice(first, first + ROWS)))
        exact = "donot_use_mm_for_euclid_dist"  # else copies would be at distance 1e-3
        apart, which = torch.cdist(flat, some.flatten(1), compute_mode=exact).min(dim=1)
        place = torch.where(apart < least, first + which, place)
        least = least.minimum(apart)
    return place.numpy(), least.numpy()


def grid(images: np.ndarray, train: Split) -> np.ndarray:
    """The first `SIDE` ² pictures, the training image nearest in pixels to the right of each.

    uint8 [H, W] of one channel, [H, W, 3] of three. Pixels are enlarged to squares.
    """
    shown = images[: SIDE**2]
    pairs = np.concatenate([shown, train.images[nearest(shown, train)[0]]], axis=3)  # side by side
    grey = np.rint(pairs * (255 / train.max_value)).astype(np.uint8)
    scale = -(-LEAST // images.shape[-1])
    large = grey.repeat(scale, axis=2).repeat(scale, axis=3)
    edges = ((0, SIDE**2 - len(large)), (0, 0), (0, GAP), (0, GAP))
    cells = np.pad(large, edges, constant_values=255)
    _, channels, height, width = cells.shape
    table = cells.reshape(SIDE, SIDE, channels, height, width).transpose(0, 3, 1, 4, 2)
    return table.reshape(SIDE * height, SIDE * width, channels).squeeze()
