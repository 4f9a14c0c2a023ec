"""Pictures come to a network with the channels that it takes, from shards to certificates."""

from pathlib import Path

import numpy as np
import pytest
import workspace
from builders import refused
from PIL import Image
from workspace import Workspace

from pipeline.stages import denoise, pretrain, train
from rrcm.config import sections
from rrcm.core.errors import ConfigError
from rrcm.data.splits import shards
from rrcm.data.splits.pictures import Fit, read

SIDE, CLASSES, STEPS = 28, ("nine", "one"), 2


def grey_pngs(root: Path, *, colours: int) -> Path:
    """Grey pictures of two classes, dark and light; ``colours`` of a class are saved in RGB."""
    for label, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for number in range(16):
            rng = np.random.default_rng((label, number))
            image = (40 + 150 * label + rng.integers(0, 60, (SIDE, SIDE))).astype(np.uint8)
            picture = Image.fromarray(image)
            picture = picture.convert("RGB") if number < colours else picture
            picture.save(root / name / f"{number:03d}.png")
    return root


def settings(params):
    params["data"].update(name="folder", test=8, validation=4, choice=0, size=SIDE, channels=1)
    params["models"]["tiny"].update(image_size=SIDE, patch_size=7)
    params["pretrain"]["tiny"].update(steps=STEPS, batch_size=10)
    params["recipes"]["finetune"].update(epochs=1, batch_size=10)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory) -> Workspace:
    """A checkout whose data are a folder of grey pictures, a few of them saved in colour."""
    root = tmp_path_factory.mktemp("grey")
    made = workspace.create(root / "checkout")
    made.edit(settings)
    made.run("rrcm", "data", "folder", "--from", str(grey_pngs(root / "raw", colours=3)))
    made.stage("shard")
    return made


@pytest.fixture
def checkout(sharded: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A copy of it, in which we are."""
    made = sharded.copy(tmp_path / "checkout")
    monkeypatch.chdir(made.path)
    return made


def test_everything_sees_grey_pictures_with_one_channel(sharded: Workspace, tmp_path: Path):
    """As `rrcm certify` reads a file for a network of one channel."""
    split = shards.read(sharded.path / "shards", "train")

    assert split.images.shape == (20, 1, SIDE, SIDE)
    fit = Fit(shape=(1, SIDE, SIDE), resize="crop", ratio=1.0)
    for row in range(len(split.idx)):
        (tmp_path / "picture").write_bytes(split.images.encoded(row))
        np.testing.assert_array_equal(split.images[row], read(tmp_path / "picture", fit))
    assert shards.fit(shards.read_index(sharded.path / "shards/test")) == fit


def denoiser(params):
    """An entry of its own: a denoiser of pictures in colour, with all constants of a training."""
    pretrain = params["pretrain"]["tiny"]
    params["models"]["dncnn"] = {"channels": 3, "image_size": SIDE, "depth": 3, "width": 4}
    params["models"]["dncnn"]["momentum"] = 0.1
    params["denoisers"] = {
        "tiny": {
            "network": "dncnn", "model": "dncnn", "objective": "mse", "seed": 0, "steps": STEPS,
            "batch_size": 8, "start": sections.NONE, "guide": sections.NONE, "ema": 0.0,
            "architecture": "vit",
            "loss": {"sigma": 0.5}, "augment": [], "optimizer": dict(pretrain["optimizer"]),
            "compute": dict(pretrain["compute"]),
        }
    }  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "change", "said"),
    [
        (
            "pretrain tiny",
            lambda p: p["models"]["tiny"].update(channels=3),
            "models.tiny.channels: is 3, but the images have 1 channels (data.channels)",
        ),
        (
            "train tiny-gaussian-s050",
            lambda p: p["models"]["tiny"].update(image_size=14),
            "models.tiny.image_size: is 14, but the images have 28 x 28 pixels (data.size)",
        ),
        (
            "denoise tiny",
            denoiser,
            "models.dncnn.channels: is 3, but the images have 1 channels (data.channels)",
        ),
    ],
)
def test_a_network_of_other_images_is_refused_before_the_first_step(checkout, stage, change, said):
    checkout.edit(change)
    name, entry = stage.split()

    with refused(ConfigError, said, "set both alike"):
        {"pretrain": pretrain, "train": train, "denoise": denoise}[name].main(entry)
    assert not [p for f in ("pretrained", "models", "denoisers") for p in Path(f).glob("*")]
