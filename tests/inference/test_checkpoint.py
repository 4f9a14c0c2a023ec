"""A checkpoint of another program is the function that its repository describes, or is refused."""

import argparse
from pathlib import Path

import field_checkpoints as field
import pytest
import timm
import torch
import torchvision
from builders import foreign, refused
from field_checkpoints import cohen, logits, residual_scores, written

from rrcm.core.errors import BackendError, CheckpointError, ConfigError
from rrcm.inference.foreign.checkpoint import Backend
from rrcm.models.field import recognise

pytestmark = pytest.mark.usefixtures("unforked")


def noisy(shape: tuple[int, ...], rows: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return 0.5 + 0.5 * torch.randn(rows, *shape, generator=generator)


def close(found: Backend, expected: torch.Tensor, x: torch.Tensor) -> bool:
    return torch.allclose(found.scores(x).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", field.FORMATS)
def test_logits_are_those_of_the_description(tmp_path: Path, case: str):
    """The noise comes first, then the normalisation, then the network."""
    make, forward, state, normalisation, said = field.FORMATS[case]
    (path,) = written(tmp_path, make())
    size = (64, 64) if normalisation is field.IMAGENET else None

    found = foreign("checkpoint", [path], size=size)

    x = noisy(found.shape)
    assert close(found, logits(forward, state, x, normalisation), x)
    assert said in found.notes[0] and f"{path}" in found.notes[0]
    assert len(found.notes) == 1 + ("model_ema" in said)  # which of several was taken


@pytest.mark.parametrize("name", ["resnet50", "resnet34", "resnext50_32x4d"])
def test_residual_networks_are_those_of_torchvision(name: str):
    torch.manual_seed(0)
    own = torchvision.models.get_model(name).eval()
    x = noisy((3, 64, 64), rows=1)

    found = recognise.network(Path("net.pth"), own.state_dict())

    with torch.inference_mode():
        assert torch.allclose(found.network(x), own(x), rtol=1e-5, atol=1e-5)
    assert found.shape == (3, 224, 224) and found.classes == 1000


def test_a_wide_residual_network_has_as_many_parameters_as_published():
    """Golden: WRN-40-2 of 10 classes; tables of distillation have 2,255,156 for 100."""
    state = field.wide(6, 2, 10)

    found = recognise.network(Path("net.pth"), state)

    assert sum(p.numel() for p in found.network.parameters()) == 2_243_546
    assert found.name == "WideResNet-40-2"


def test_a_file_of_timms_trainer_is_what_it_says(tmp_path: Path):
    own = timm.create_model("resnet10t", num_classes=4).eval()
    args = argparse.Namespace(model="resnet10t", gp=None, mean=[0.1], std=[0.5], img_size=32)
    held = {
        "epoch": 1,
        "version": 2,
        "args": args,
        "metric": 0.5,
        "state_dict_ema": own.state_dict(),
    }
    others = {"arch": "resnet10t", "state_dict": {"a": torch.ones(1)}, "model_ema": {}}
    (path,) = written(tmp_path, held | others)

    found = foreign("checkpoint", [path])

    x = noisy((3, 32, 32))
    with torch.inference_mode():
        assert close(found, own((x - 0.1) / 0.5).double(), x)
    assert "(state_dict_ema): resnet10t of timm's trainer, normalised as it says" in found.notes[0]
    assert "state_dict_ema was taken, as by timm's loader, and not state_dict" in found.notes[1]


def test_several_files_are_an_ensemble_also_behind_a_denoiser(tmp_path: Path):
    """Golden: the mean of logits, the rule of Horvath et al.; members of other formats fit."""
    other = field.residual((1, 1, 1), (16, 32, 64), 10, seed=1)
    denoiser = {"arch": "cifar_dncnn", "state_dict": field.prefixed("module.", field.dncnn())}
    *files, front = written(tmp_path, cohen(field.SMALL), {"net": {**other}, "epoch": 1}, denoiser)
    x = noisy((3, 32, 32))

    def members(x: torch.Tensor) -> list[torch.Tensor]:
        pairs = ((field.SMALL, field.CIFAR10), (other, field.NONE))
        return [logits(residual_scores, w, x, normalisation) for w, normalisation in pairs]

    clean = field.denoised({n: t.double() for n, t in field.dncnn().items()}, x.double())
    assert close(foreign("checkpoint", files), sum(members(x)) / 2, x)
    behind = foreign("checkpoint", files, denoiser=front)
    assert close(behind, sum(members(clean)) / 2, x)
    alone = foreign("checkpoint", files[:1], denoiser=front)
    assert close(alone, members(clean)[0], x)
    assert alone.inside.startswith("DnCNN of 17 layers of 64 channels, mean 0.4914,")
    assert f"{front}: DnCNN of 17 layers" in alone.notes[-1]
    (odd,) = written(tmp_path / "..", cohen(field.lenet()))
    with refused(BackendError, f"{odd}: pictures of (1, 28, 28), not of (3, 32, 32)"):
        foreign("checkpoint", [*files, odd])
    with refused(BackendError, "the checkpoint does not run at 28 x 28:"):
        foreign("checkpoint", [odd], denoiser=front)


MEAN, STD = field.CIFAR10
ASKED = [
    (residual_scores, field.PYTORCH_CIFAR, {"normalise": "cifar10"}, field.CIFAR10),
    (residual_scores, field.PYTORCH_CIFAR, {"mean": MEAN, "std": STD}, field.CIFAR10),
    (residual_scores, field.OPTION_A, {"normalise": "cifar10-mean"}, (MEAN, (1.0,))),
    (residual_scores, field.OPTION_A, {"normalise": "none"}, field.NONE),
    (residual_scores, field.OPTION_A, {"mean": MEAN}, (MEAN, (1.0,))),
    (field.lenet_scores, field.lenet(), {"normalise": "mnist"}, ((0.1307,), (0.3081,))),
]


@pytest.mark.parametrize(("forward", "state", "options", "normalisation"), ASKED)
def test_what_the_file_does_not_show_is_asked_for(tmp_path, forward, state, options, normalisation):
    """As of pytorch-cifar, whose key is MACER's, of shortcuts without weights, of grey pictures."""
    held = {"net": field.prefixed("module.", state), "acc": 9.0, "epoch": 3}
    (path,) = written(tmp_path, held)

    with refused(ConfigError, "of 10 classes, and nothing shows how", "--normalise cifar10,"):
        foreign("checkpoint", [path])
    found = foreign("checkpoint", [path], **options)

    x = noisy(found.shape)
    assert close(found, logits(forward, state, x, normalisation), x)
    assert "normalised as given" in found.notes[0]


def test_a_files_own_statistics_are_used_whole_or_asked_for(tmp_path: Path):
    """One of the two alone, as of a layer that centres pixels, tells nothing of the other."""
    held = cohen(field.SMALL)
    held["state_dict"] |= {"0.mean": torch.tensor(MEAN)}
    (path,) = written(tmp_path, held)

    with refused(ConfigError, f"{path}: its own mean (0.49", "and std () do not fit each other"):
        foreign("checkpoint", [path])
    found = foreign("checkpoint", [path], normalise="cifar10-mean")

    assert "normalised as given, not by its own mean (0.49" in found.notes[0]


def test_lists_beside_the_weights_say_how_pixels_are_normalised(tmp_path: Path):
    """In options or at the top; a number by itself, as of noise, is none."""
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.4, 0.3]
    for more in (
        {"args": argparse.Namespace(mean=mean, std=std)},
        {"mean": mean, "std": std, "args": {"std": None}},
        {"mean": torch.tensor(mean), "std": torch.tensor(std)},
    ):
        (path,) = written(tmp_path, cohen(field.SMALL) | more)

        found = foreign("checkpoint", [path])

        x = noisy(found.shape)
        assert close(found, logits(residual_scores, field.SMALL, x, (mean, std)), x)
        assert "normalised by its own mean and std" in found.notes[0]
    (path,) = written(tmp_path, cohen(field.SMALL) | {"args": {"std": 0.25, "mean": "x"}})
    assert "by cifar10 in the layer before it" in foreign("checkpoint", [path]).notes[0]


def test_a_denoiser_that_normalises_is_none(tmp_path: Path):
    state = field.prefixed("1.", field.dncnn()) | {"0.mean": torch.zeros(3), "0.std": torch.ones(3)}
    front, path = written(tmp_path, {"state_dict": state}, cohen(field.SMALL))

    with refused(CheckpointError, f"{front}: it normalises pixels, which denoisers that are known"):
        foreign("checkpoint", [path], denoiser=front)


def test_what_is_asked_for_is_one_normalisation(tmp_path: Path):
    for asked, words in (
        ({"normalise": "cifar"}, "normalise: no 'cifar', only cifar10,"),
        ({"normalise": "none", "std": STD}, "normalise: has a mean and std of its own"),
    ):
        with refused(ConfigError, words):
            foreign("checkpoint", [], **asked)


def test_1000_classes_of_small_pictures_are_normalised_in_two_ways(tmp_path: Path):
    (path,) = written(tmp_path, cohen(field.residual((1, 1, 1), (16, 32, 64), 1000)))

    with refused(ConfigError, "ResNet-8 of 1000 classes, and nothing shows"):
        foreign("checkpoint", [path])


def but(**changes) -> dict:
    return dict(field.SMALL) | {name.replace("__", "."): t for name, t in changes.items()}


def without(name: str) -> dict:
    return {key: tensor for key, tensor in field.SMALL.items() if key != name}


VGG = {"features.0.weight": torch.ones(64, 3, 3, 3), "classifier.6.weight": torch.ones(10, 512)}
VIT = {"base_model.patch_embed.proj.weight": torch.ones(8, 3, 4, 4), "cls_token": torch.ones(1)}
NAN, WIDER = torch.full((10,), torch.nan), torch.ones(32, 32, 5, 5)
HUGE = torch.ones(1, 1, 1, 1).expand(10**6, 10**6, 3, 3)
UNKNOWN = {
    "VGG": (
        VGG,
        "2 tensors (features.0.weight [64, 3, 3, 3] … classifier.6.weight [10, 512]), as of a VGG, "
        "AlexNet or MobileNet: none of ResNet,",
    ),
    "ViT": (VIT, "as of a ViT; `rrcm import` takes those of rRCM"),
    "denoiser": (field.dncnn(), "as of a DnCNN denoiser; give it with --denoiser"),
    "UNet": ({"input_blocks.0.0.bias": torch.ones(8)}, "a diffusion UNet; `rrcm import-denoiser`"),
    "its activation": (
        {"layer.0.block.0.conv_0.weight": torch.ones(16, 16, 3, 3)},
        "as of a WideResNet whose activation no tensor shows: none of ResNet, WideResNet,",
    ),
    "way out": ({"w": torch.ones(2)}, "pass it to rrcm.smooth, or name timm's (--timm NAME"),
    "missing": (without("layer2.0.bn1.bias"), "bn1.bias is missing (taken for a ResNet-20)"),
    "more": (but(gamma=torch.ones(1)), "gamma is not of this network"),
    "shape": (but(layer2__1__conv1__weight=WIDER), "is [32, 32, 5, 5], not [32, 32, 3, 3]"),
    "padded": (
        {**field.lenet(), "fc1.weight": torch.ones(500, 50 * 7 * 7)},
        "fc1 has 2450 inputs is for pictures of 40 pixels, or of 28 if its convolutions pad",
    ),
    "head": (
        {k: v for k, v in field.wide(1, 1, 10).items() if k != "fc.bias"},
        "a WideResNet whose last layer has no bias may normalise what it takes",
    ),
    "twice": (but(linear__bias=torch.ones(10)), "linear and fc, or shortcut and downsample, name"),
    "two means": ({"mu": torch.ones(3), **but(mean=torch.ones(3))}, "mu and mean are two of one"),
    "NaN": (but(fc__bias=NAN), "fc.bias holds numbers that are not finite"),
    "empty": (but(fc__weight=torch.ones(10**9, 0)), "none of ResNet"),
    "axes": (but(conv1__weight=torch.ones(16)), "none of ResNet"),
    "huge": (but(conv1__weight=HUGE), "conv1.weight is no plain tensor"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_another_network_is_refused_in_one_line_that_says_what_it_looks_like(tmp_path, case):
    state, words = UNKNOWN[case]
    (path,) = written(tmp_path, {"state_dict": {**state}})

    with refused(CheckpointError, f"{path}: ", words):
        foreign("checkpoint", [path])


def test_a_file_of_timms_kin_of_a_resnet_is_not_taken_for_a_plain_one(tmp_path):
    (path,) = written(tmp_path, field.cohen(field.SMALL, arch="resnetaa50"))

    with refused(
        CheckpointError, "the weights of resnetaa50", f"--timm resnetaa50 --weights {path}"
    ):
        foreign("checkpoint", [path])


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_cut_short_is_refused(tmp_path: Path, zipped: bool):
    (path,) = written(tmp_path, cohen(field.SMALL), _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()

    for share in (0.2, 0.9, 0.999):
        path.write_bytes(whole[: int(share * len(whole))])
        with refused(CheckpointError, f"{path}: "):
            foreign("checkpoint", [path])
