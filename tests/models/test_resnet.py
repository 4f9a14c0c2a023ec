"""ResNets are those of the literature, and train and are exported as other networks."""

import dataclasses

import networks
import pytest
import torch
import torch.nn.functional as F
import torchvision
from builders import export_to, images, opened, refused
from helpers import MINI, PRETRAIN, equal
from networks import COLOUR, IMAGENET, ODD, RESNET
from torch import nn

from rrcm.certification.sampling import drawing
from rrcm.config import sections
from rrcm.core.errors import ConfigError
from rrcm.models.folding.resnet import fold
from rrcm.models.networks import resnet
from rrcm.models.trained.base import checkpoint, classifier
from rrcm.training import finetune, pretrain
from rrcm.training.engine.computing import prepare

SIGMA = torch.tensor(0.5)


def model(**changed):
    return sections.Model(architecture="resnet", shape=RESNET | changed)


def shape(**changed):
    return resnet.Config(**RESNET | changed)


def build():
    """A network in which every parameter and statistic matters, in evaluation mode."""
    torch.manual_seed(0)
    networks.fill(network := networks.build("resnet"))
    return network.eval().requires_grad_(False)


def pixels(count, **changed):
    cfg = shape(**changed)
    size = count, cfg.channels, cfg.image_size, cfg.image_size
    return torch.rand(size) + 0.5 * torch.randn(size)


@pytest.mark.parametrize(
    ("size", "parameters", "published"), [("20", 0.27e6, 272_474), ("110", 1.7e6, 1_730_714)]
)
def test_small_networks_have_as_many_parameters_as_published(size, parameters, published):
    """Counted by hand, with 10 classes; He et al., table 6, to two digits.

    Theirs has no convolutions in the shortcuts, of 16 x 32 + 32 x 64 weights and their BatchNorm.
    """
    n = (int(size) - 2) // 6
    stem, head = 27 * 16 + 2 * 16, 64 * 10 + 10
    blocks = sum(2 * n * (9 * c**2 + 2 * c) - 9 * c * (c - before) for before, c in PAIRS)
    shortcuts = sum(before * c + 2 * c for before, c in PAIRS[1:])
    cfg = shape(**COLOUR, size=size, image_size=32)
    with torch.device("meta"):
        network = classifier.Classifier(
            resnet.Encoder(cfg), width=cfg.width, classes=10, condition="exact"
        )

    count = sum(p.numel() for p in network.parameters())
    assert count == stem + blocks + shortcuts + head == published
    assert count - shortcuts == pytest.approx(parameters, rel=0.02)


PAIRS = [(16, 16), (16, 32), (32, 64)]  # channels before each stage, and in it


def test_the_network_for_imagenet_is_torchvision_s():
    """Its 25,557,032 parameters, their names, and what it computes from them."""
    torch.manual_seed(0)
    theirs = torchvision.models.resnet50(weights=None).eval()
    cfg = shape(**IMAGENET)
    ours = resnet.Encoder(cfg).eval()
    tensors = {n: t for n, t in theirs.state_dict().items() if not n.startswith("fc.")}
    checkpoint.restore(ours, tensors, source="torchvision")
    seen = []
    theirs.fc.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = pixels(2, **IMAGENET)

    with torch.no_grad():
        theirs(torchvision.transforms.functional.normalize(x, cfg.mean, cfg.std))
        torch.testing.assert_close(ours(x, SIGMA), seen[0], rtol=1e-4, atol=1e-5)
    count = sum(p.numel() for p in ours.parameters())
    assert count + 2048 * 1000 + 1000 == 25_557_032


def test_a_small_network_is_its_equations():
    """Written out: two convolutions of 3 x 3 beside a shortcut, three times, at half the size."""
    network, x = build().double(), pixels(3).double()
    tensors = network.state_dict()

    def conv(h, name, norm, **how):
        h = F.conv2d(h, tensors[f"encoder.{name}.weight"], **how)
        mean, var, weight, bias = (
            tensors[f"encoder.{norm}.{key}"][:, None, None]
            for key in ("running_mean", "running_var", "weight", "bias")
        )
        return (h - mean) / (var + 1e-5).sqrt() * weight + bias

    h = conv((x - 0.3) / 0.2, "conv1", "bn1", padding=1).relu()
    for i, stride in enumerate((1, 2, 2), start=1):
        at = f"layer{i}.0"
        inside = conv(h, f"{at}.conv1", f"{at}.bn1", stride=stride, padding=1).relu()
        inside = conv(inside, f"{at}.conv2", f"{at}.bn2", padding=1)
        if stride == 2:
            h = conv(h, f"{at}.downsample.0", f"{at}.downsample.1", stride=2)
        h = (inside + h).relu()
    expected = h.mean(dim=(2, 3)) @ tensors["head.weight"].T + tensors["head.bias"]

    assert h.shape == (3, 64, 2, 2)
    torch.testing.assert_close(network(x, SIGMA), expected, rtol=1e-5, atol=1e-5)


def test_convolutions_start_as_he_et_al_s():
    torch.manual_seed(0)
    encoder = resnet.Encoder(shape(size="20"))

    for module in encoder.modules():
        if isinstance(module, nn.Conv2d):
            out = module.weight.shape[0] * module.kernel_size[0] ** 2
            found = module.weight.std().item() / (2 / out) ** 0.5
            assert found == pytest.approx(1, rel=4 / module.weight.numel() ** 0.5)
        if isinstance(module, nn.BatchNorm2d):
            assert module.weight.eq(1).all() and not module.bias.any()


def test_activations_that_cannot_be_recomputed_are_refused():
    twice = dataclasses.replace(PRETRAIN.compute, recompute=True)
    with refused(ConfigError, "compute.recompute: resnet does not support it; set"):
        prepare(build().encoder, twice, name="resnet")


def test_layers_decay_from_the_head_to_the_stem():
    """Block by block through the stages: the first stage of two blocks lies below the second."""
    recipe = dataclasses.replace(MINI.recipes["finetune"], layer_decay=0.5, final_norm=False)
    state = finetune.start(MINI.runs["tiny-rrcm-s050"], recipe, model(**ODD), classes=7)
    network, scales = state.modules["classifier"], {}
    names = {id(p): name for name, p in network.named_parameters()}
    for group in state.optimizer.param_groups:
        scales |= {names[id(p)]: group["lr_scale"] for p in group["params"]}

    order = ["head.", "encoder.layer3.1.", "encoder.layer3.0.", "encoder.layer2.1."]
    order += ["encoder.layer2.0.", "encoder.layer1.1.", "encoder.layer1.0.", "encoder.conv1."]
    for depth, prefix in enumerate(order):
        assert {v for n, v in scales.items() if n.startswith(prefix)} == {0.5**depth}
    assert scales["encoder.bn1.weight"] == scales["encoder.conv1.weight"]
    assert scales.keys() == dict(network.named_parameters()).keys()


def test_an_encoder_can_be_pretrained_and_begun_from(tmp_path):
    """With its first layer frozen."""
    cfg = dataclasses.replace(PRETRAIN, steps=2, batch_size=8, freeze_patches=True)
    state = pretrain.start(cfg, model())
    online = state.modules["online"]["encoder"]
    before = {name: t.clone() for name, t in online.state_dict().items()}
    split = images(16, (1, 8, 8), classes=7, max_value=255)

    for _ in pretrain.pretrain(state, split, cfg):
        pass

    assert torch.equal(online.conv1.weight, before["conv1.weight"])
    assert not torch.equal(online.bn1.running_mean, before["bn1.running_mean"])
    checkpoint.save(tmp_path / "encoder.safetensors", online.state_dict())
    network = build()
    classifier.begin(network, tmp_path)
    assert equal(network.encoder.state_dict(), online.state_dict())


def test_it_is_exported_for_any_batch_and_is_batch_invariant(tmp_path):
    """And the same weights give the same bytes."""
    network, root = build(), tmp_path / "onnx"
    split = images(16, (1, 8, 8), classes=7, max_value=255)
    for name in ("a", "b"):
        record = export_to(root / f"{name}.onnx", network, fold(network), split, run="a")

    exported = opened(tmp_path, "a")
    assert (root / "a.onnx").read_bytes() == (root / "b.onnx").read_bytes()
    assert record["images"] == 16 and record["argmax_agreement"] == 1
    assert record["max_abs_difference"] <= 1e-4 < 1 < record["max_abs_score"]
    for rows in (1, 5):
        x = pixels(rows)
        torch.testing.assert_close(exported.scores(x), network(x, SIGMA), rtol=1e-4, atol=1e-5)
    assert drawing.is_batch_invariant(exported, pixels(32))
