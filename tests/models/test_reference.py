"""Checkpoints of the reference implementation: read whole, checked by name."""

import math
import zipfile

import pytest
import torch
from builders import refused
from networks import attended
from release_checkpoints import (
    CHANNELS,
    CLASSES,
    DEPTH,
    HEADS,
    HIDDEN,
    PATCH,
    SIDE,
    WIDTH,
    encoder,
    tuned,
)

from rrcm.config import sections
from rrcm.core.errors import CheckpointError
from rrcm.models import rrcm_release
from rrcm.models.field import reading
from rrcm.models.trained.base import classifier


def naive_logits(w, x, sigma, *, final_norm):
    """The reference forward pass as it is described, patch by patch and head by head."""
    grid = [(80 ** (1 / 7) + i / 80 * (0.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7 for i in range(81)]
    t = min(grid, key=lambda level: abs(level - 2 * sigma))
    d = WIDTH

    u = (x - 0.5) / 0.5 / math.sqrt(t**2 + 0.25)
    tokens = [w["cls_token"][0, 0]]
    angles = [250 * math.log(t) * math.exp(-math.log(1e4) * k / (d // 2)) for k in range(d // 2)]
    tokens.append(torch.tensor([*map(math.cos, angles), *map(math.sin, angles)]).double())
    for row in range(0, SIDE, PATCH):
        for column in range(0, SIDE, PATCH):
            patch = u[:, row : row + PATCH, column : column + PATCH]
            token = (w["patch_embed.proj.weight"] * patch).sum(dim=(1, 2, 3))
            tokens.append(token + w["patch_embed.proj.bias"])
    seen = torch.stack(tokens)[None] + w["pos_embed"]
    for i in range(DEPTH):
        seen = attended(seen, w, f"blocks.{i}", HEADS)
    cls = seen[0, 0]
    if final_norm:
        centred = cls - cls.mean()
        cls = centred / (centred.square().mean() + 1e-5).sqrt() * w["norm.weight"] + w["norm.bias"]
    return w["linear_head.weight"] @ cls + w["linear_head.bias"]


def wrapped(state):
    return {f"module.{name}": t for name, t in state.items()}


def written(state, path, **options):
    torch.save(state, path, **options)
    return path


def read(path, **changes):
    tensors = reading.read(path).found.tensors
    return rrcm_release.recognised(path, tensors, **{"heads": HEADS, "final_norm": True} | changes)


@pytest.mark.parametrize(("prefix", "final_norm"), [("plain", True), ("module.", False)])
def test_logits_are_those_of_the_reference(tmp_path, final_norm, prefix):
    """Read, kept as our own files, loaded from there: within 1e-5 of a naive forward pass."""
    state = wrapped(tuned()) if prefix == "module." else tuned()
    found = read(written(state, tmp_path / "best.pt"), final_norm=final_norm)
    model = sections.Model(architecture="vit", shape=found.shape)
    described = {"classes": [*"abcde"], "condition": "nearest", "final_norm": final_norm}
    classifier.save(tmp_path / "imported", found.tensors, model=model, config=described)
    network, _ = classifier.load(tmp_path / "imported")
    w = {name.removeprefix("base_model."): t.double() for name, t in tuned().items()}
    x = torch.rand(2, CHANNELS, SIDE, SIDE, generator=torch.Generator().manual_seed(2))

    for sigma in (0.25, 1.0):
        expected = [naive_logits(w, one.double(), sigma, final_norm=final_norm) for one in x]
        ours = network(x, torch.tensor(sigma)).double()

        torch.testing.assert_close(ours, torch.stack(expected), atol=1e-5, rtol=1e-5)


def test_an_encoder_leaves_its_projector_behind(tmp_path):
    state = encoder()
    found = read(written(wrapped(state), tmp_path / "nnet.pth"), final_norm=False)

    assert found.classes is None and found.final_norm
    assert found.tensors.keys() == {n for n in state if not n.startswith("projection_head.")}
    assert all(torch.equal(found.tensors[name], state[name]) for name in found.tensors)


def test_shapes_tell_the_network_but_for_its_heads(tmp_path):
    path = written(encoder(), tmp_path / "nnet.pth")

    assert read(path).shape == {
        "size": "48x2x4",
        "image_size": SIDE,
        "channels": CHANNELS,
        "patch_size": PATCH,
        "position_std": 0.02,
        "init": "xavier",
        "projector_width": HIDDEN,
        "projector_dim": 256,
    }
    with pytest.raises(CheckpointError, match="width 48 and 2 blocks; shapes do not say how many"):
        read(path, heads=None)
    with pytest.raises(CheckpointError, match="width 48 must be even and a multiple of 5 heads"):
        read(path, heads=5)
    for heads, name in ((None, "b_deep"), (24, "b_deep"), (12, "768x24x12")):
        assert rrcm_release._size(path, 768, 24, heads=heads) == name


def test_the_old_format_of_pytorch_and_shorter_floats_are_read_too(tmp_path):
    state = encoder() | {"cls_token": encoder()["cls_token"].half()}
    path = written(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)

    assert not zipfile.is_zipfile(path)
    assert torch.equal(read(path).tensors["cls_token"], state["cls_token"].float())


def without(name):
    return lambda state: state.pop(name)


def but(**changes):
    return lambda state: state.update({k.replace("__", "."): v for k, v in changes.items()})


FC1 = "base_model.blocks.1.mlp.fc1.weight"
NAN = torch.full((CLASSES,), torch.nan)
BROKEN = {
    "missing": (without("base_model.pos_embed"), "pos_embed is missing, so this is no checkpoint"),
    "a block's": (without(FC1), "blocks.1.mlp.fc1.weight is missing"),
    "norm": (without("base_model.norm.weight"), "norm.weight is missing; if the head reads no"),
    "head's bias": (without("linear_head.bias"), "linear_head.bias is missing"),
    "wrong key": (
        lambda s: s.update({FC1.replace("fc1", "fc3"): s[FC1]}),
        "blocks.1.mlp.fc3.weight is not of this network. Did you mean 'blocks.1.mlp.fc2.weight'?",
    ),
    "gap": (
        lambda s: [s.update({k.replace(".1.", ".7."): s.pop(k)}) for k in [*s] if "blocks.1." in k],
        "blocks.1.norm1.weight is missing",
    ),
    "shape": (lambda s: s.update({FC1: s[FC1].T}), "fc1.weight is [48, 192], not [192, 48]"),
    "head's width": (but(linear_head__weight=torch.ones(5, 7)), "is [5, 7], not [5, 48]"),
    "tokens": (but(base_model__pos_embed=torch.ones(1, 12, 48)), "has 12 tokens: cls, time and 10"),
    "axes": (but(base_model__pos_embed=torch.ones(12, 48)), "pos_embed is [12, 48], not 3 axes"),
    "NaN": (but(linear_head__bias=NAN), "linear_head.bias holds numbers that are not finite"),
    "long": (lambda s: s.update({FC1: s[FC1].double()}), "is torch.float64, not float32"),
    "no tensor": (but(step=3), "but 'step' is a int"),
    "name": (lambda s: s.update({3: torch.ones(1)}), "but 3 is a Tensor"),
    "sparse": (but(linear_head__bias=torch.ones(5).to_sparse()), "linear_head.bias is no plain"),
    "mixed prefixes": (
        lambda s: s.update({f"module.{FC1}": s.pop(FC1)}),
        "patch_embed.proj.weight is missing, so this is no checkpoint of rRCM",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_checkpoint_that_is_not_ours_is_refused_in_one_line(tmp_path, case):
    change, message = BROKEN[case]
    state = tuned()
    change(state)

    with refused(CheckpointError, f"{tmp_path}/best.pt: ", message):
        read(written(state, tmp_path / "best.pt"))
