"""``rrcm.smooth(…).certify(…)``: any network, any images, and the votes of the command line."""

import copy
import dataclasses
import doctest
import itertools
import math
import pickle
import random
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from builders import refused
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from workspace import ROOT

import rrcm
from rrcm.certification.answers import Answers
from rrcm.certification.sampling import sampler, voting
from rrcm.core.errors import (
    BackendError,
    CheckpointError,
    ConfigError,
    DataError,
    PlausibilityWarning,
    VotesError,
)
from rrcm.inference.foreign import _probes

SIGMA = 0.5
FAST = {"n": 1000, "n0": 20, "seed": 3, "progress": False}
IMAGES = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
LABELS = [0, 1, 0, 1, 0, 1]


class Brightness(nn.Module):
    """Two classes by the sum of 16 pixels, below or above 8: the score is linear in the noise.

    Networks below do with it what they are ``told``.
    """

    def __init__(self, told=None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))
        self.told = told

    def forward(self, pixel_values):
        total = pixel_values.flatten(1) @ self.weight - 8
        return torch.stack([-total, total], dim=1)


def net() -> nn.Module:
    return Brightness().eval()


def smooth(network=None, **options):
    return rrcm.smooth(network or net(), **{"sigma": SIGMA, "classes": 2} | options)


@cache
def opened():
    """The network of most tests, which is checked once."""
    return smooth(shape=(1, 4, 4))


def said(answers: Answers) -> list[tuple]:
    return [(a.label, a.radius, a.n_A, a.n, a.idx) for a in answers]


def test_a_module_is_certified_where_the_closed_form_says():
    """The score is N(sum - 8, 16 sigma^2), so that R = |sum - 8| / 4 for the exact classifier."""
    answers = opened().certify(IMAGES, **FAST | {"n": 10_000, "stop": "none"})

    exact = (IMAGES.flatten(1).sum(1) - 8) / 4
    for answer, distance in zip(answers, exact.tolist(), strict=True):
        assert answer.abstained or answer.label == int(distance > 0)
        assert answer.radius <= abs(distance)
        assert answer.abstained or answer.radius > abs(distance) - 0.08
    assert sum(not answer.abstained for answer in answers) >= 4


def pil(image):
    return Image.fromarray((image[0].numpy() * 255).round().astype(np.uint8))


def forms(folder: Path) -> dict:
    """The same images, rounded to eight bits, in every form."""
    pictures = [pil(image) for image in IMAGES]
    arrays = np.stack([np.asarray(picture) for picture in pictures])
    floats = torch.from_numpy(arrays[:, None]).float() / 255
    paths = []
    for place, picture in enumerate(pictures):
        paths.append(folder / f"{place}.png")
        picture.save(paths[-1])
    labelled = TensorDataset(floats, torch.tensor(LABELS))
    return {
        "uint8 tensor": torch.from_numpy(arrays[:, None]),
        "arrays [H, W]": list(arrays),
        "array [B, H, W, C]": arrays[..., None],
        "array [B, C, H, W]": arrays[:, None],
        "float tensor": floats,
        "float64 array": floats.numpy().astype(np.float64),
        "PIL": pictures,
        "paths": paths,
        "names": [str(path) for path in paths],
        "data set": labelled,
        "loader": DataLoader(labelled, batch_size=4),
        "Hugging Face": [
            {"image": picture, "label": label}
            for picture, label in zip(pictures, LABELS, strict=True)
        ],
        "pixel values": [{"pixel_values": floats[:4]}, {"pixel_values": floats[4:]}],
    }


def test_images_have_many_forms_and_one_answer(tmp_path: Path):
    network = smooth(shape=(1, 4, 4), resize="exact")

    found = {name: network.certify(one, **FAST) for name, one in forms(tmp_path).items()}

    first = said(found["uint8 tensor"])
    assert {name for name, got in found.items() if said(got) != first} == set()
    with_labels = {name for name, got in found.items() if got.rows[0].label != -1}
    assert with_labels == {"data set", "loader", "Hugging Face"}
    assert [row.label for row in found["loader"].rows] == LABELS


def test_one_image_has_the_answer_of_a_batch():
    (wanted,) = opened().certify(torch.full((1, 4, 4), 0.9), seed=3, progress=False)
    one = opened().answer(torch.full((1, 4, 4), 0.9), seed=3)

    assert one == wanted
    assert one.robust_at(0) and one.robust_at(one.radius) and not one.robust_at(one.radius + 1e-6)
    none = dataclasses.replace(one, label=-1, radius=0.0)
    assert none.abstained and not none.robust_at(0)


def test_what_is_no_image_or_label_is_named():
    for images, *words in [
        ([], "no images were given"),
        (IMAGES * 3 - 1, "image 0: values from -0.9", "give them before normalisation"),
        (IMAGES * 200, "image 0: values from", "divide them by 255, if that is white"),
        (IMAGES.clamp(0, 1) * 0 + 1.0000001, "to 1, by 1.2e-07 outside of [0, 1]: clamp(0, 1)"),
        (IMAGES.clamp(0, 1) * 0 + 1.066, "to 1.066, by 0.066 outside of [0, 1]: clamp(0, 1) them"),
        (IMAGES * torch.nan, "image 0: pixels are NaN"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.int64), "image 0: numbers of type int64"),
        ([IMAGES[0], torch.zeros(1, 4, 5)], "image 1: its shape is (1, 4, 5), not (1, 4, 4)"),
        (torch.zeros(2, 5, 4, 4), "images have 1 or 3 channels"),
        (np.zeros((3, 9, 3), np.uint8), "may be [C, H, W] or [H, W, C]"),
        (["nowhere.png"], "nowhere.png: for files, give smooth(…) the network's shape=(C, H, W)"),
        ("/", "/: a folder; give its files"),
        ([{"picture": 1}], "an item has picture, but none of pixel_values, image, img"),
        ([object()], "image 0: object is no image"),
        (7, "int is nothing that holds images"),
        ([(IMAGES[0], "cat")], "the labels 'cat'; a class is an integer"),
        ([(IMAGES, [1])], "the labels [1]"),
    ]:
        with refused(DataError, *words):
            smooth().certify(images, **FAST)
    for labels, words in [
        ([0], "not an integer for each of 6"),
        ([2] * 6, "2 is none of the 2"),
        ([1, 2] * 3, "from 0; no label is 0: if they count from 1, subtract 1 from each"),
    ]:
        with refused(DataError, words):
            opened().certify(IMAGES, labels=labels, **FAST)
    pairs = DataLoader(TensorDataset(IMAGES, torch.tensor(LABELS)), batch_size=4)
    for order in ({"shuffle": True}, {"sampler": [*range(5, -1, -1)]}, {"batch_sampler": [[1, 0]]}):
        with refused(DataError, "labels: the loader gives images in an order of its own"):
            opened().certify(DataLoader(IMAGES, **order), labels=LABELS, **FAST)
    with refused(DataError, "labels: image 3 is 0 there and 1 in the data set"):
        opened().certify(pairs, labels=[0, 1, 0, 0, 1, 1], **FAST)
    assert opened().certify(pairs, labels=LABELS, **FAST).rows[3].label == 1
    with refused(ConfigError, "workers: must be positive, got 0"):
        opened().certify(IMAGES, **FAST | {"workers": 0})
    with refused(ConfigError, "steps: must be positive, got 0"):
        opened().attack(IMAGES, labels=[0] * 6, steps=0)


# Arguments of other types.


def test_a_number_is_what_holds_one():
    """Of NumPy and PyTorch, whole or not; one radius is a list of one."""
    wanted = opened().certify(IMAGES, radii=[0.25], **FAST)

    for number in (np.float32, np.float64, torch.tensor, lambda x: torch.tensor([x])):
        same = smooth(sigma=number(SIGMA), classes=np.int64(2), shape=np.array([1, 4, 4]))
        got = same.certify(IMAGES, radii=number(0.25), **FAST | {"n": number(1e3), "n0": 20.0})
        assert said(got) == said(wanted) and got.header == wanted.header
    for names in (range(2), np.arange(2), ("0", "1"), np.array(["0", "1"])):
        assert smooth(classes=names).classes == ["0", "1"]
    with refused(ConfigError, "classes: numbers are those of the outputs, 0, 1, …", "[str(k) for"):
        smooth(classes=range(1, 3))
    page = rrcm.report(wanted, radii=torch.tensor([0.25, 0.0]))
    assert [*page.table][2:4] == ["answered, r = 0", "answered, r = 0.25"]


def of_another_type():
    """What is called, and the word that its error begins with."""
    for name, values in {
        "sigma": ["0.5", True, None, [0.1, 0.2], 1j],
        "classes": ["10", 2.5, [1, 2]],
        "mean": ["0.5", ["0.5"]],
        "shape": [(4, 4), 4, "1x4x4"],
        "output": [1],
    }.items():
        yield from ((name, lambda k=name, v=v: smooth(**{k: v})) for v in values)
    for name, values in {
        "n": ["200", 1.5, math.nan, math.inf, True],
        "alpha": ["0.001", [0.1, 0.2], 0, 1, math.nan],
        "radii": ["0.25", [None], {0.1: 1}, [], [-1], [math.nan]],
        "stop": [1, b"none"],
        "seed": ["1", 0.5, -1, 2**64],
        "budget": ["1m", -1, math.inf],
        "workers": ["2", 0],
        "devices": ["cpu", 0],
        "votes": [1],
        "progress": ["no", 2],
    }.items():
        yield from ((name, lambda k=name, v=v: opened().certify(IMAGES, **{k: v})) for v in values)
    for name, value in {"n": "200", "steps": 0, "copies": 1.5, "answers": [1], "path": 1}.items():
        how = {"labels": LABELS, name: value}
        yield name, lambda how=how: opened().attack(IMAGES, **how)
    yield "idx", lambda: opened().answer(IMAGES[0], idx="1")
    yield "answers", lambda: rrcm.report([1, 2])
    yield "answers", lambda: rrcm.report({"a": 1})
    constants = {"constants": {}, "sigma": "0.5"}
    yield "sigma", lambda: rrcm.losses.loss("gaussian", net(), IMAGES, IMAGES, **constants)
    yield "x", lambda: rrcm.losses.loss("gaussian", net(), IMAGES.byte(), IMAGES, sigma=1)


def test_arguments_of_other_types_are_refused_before_anything_is_drawn(monkeypatch):
    monkeypatch.delattr(sampler.VoteSampler, "draw_votes")
    for name, call in of_another_type():
        with refused(ConfigError, f"{name}: "):
            call()
    with pytest.raises(TypeError, match=r"attack\(\) got an unexpected keyword argument 'stepz'"):
        opened().attack(IMAGES, stepz=3)


# The network.


def test_a_network_in_training_mode_is_refused_and_none_is_changed():
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 2), nn.Dropout()).eval()
    network[2].train()
    with refused(BackendError, "Sequential: 2 is in training mode", "call eval() first"):
        smooth(network).certify(IMAGES, **FAST)

    network.eval()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    threads = torch.get_num_threads()
    smooth(network).certify(IMAGES, **FAST)

    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert torch.get_num_threads() == threads
    assert all(parameter.grad is None for parameter in network.parameters())


class Shuffled(Brightness):
    """Its scores depend on the batch."""

    def forward(self, x):
        return super().forward(x - x.mean())


class Counting(Brightness):
    """Its scores depend on how many pictures there are."""

    def forward(self, x):
        return super().forward(x) * (-1 if len(x) in self.told else 1)


class Scaled(Brightness):
    """As what divides pixels by 255, where one of the batch is too bright to be in [0, 1]."""

    def forward(self, x):
        return super().forward(x / 255 if x.numpy().max() > self.told else x)


class Early(Brightness):
    """Ends early where all of a batch are bright: no drawn batch is, 1 % of single pictures are."""

    def forward(self, x):
        return self.told((x[:, 0, 0, 0] > SIGMA * 2.326).all(), super().forward(x))


ENDS = {
    "if": lambda early, scores: scores.flip(1) if early else scores,
    "where": lambda early, scores: torch.where(early, scores.flip(1), scores),
    "item": lambda early, scores: scores * (1 - 2 * int(early)),
}


@pytest.mark.usefixtures("unforked")
@pytest.mark.parametrize("how", ENDS)
def test_a_number_of_a_whole_batch_is_refused_however_rarely_it_decides(how):
    network, black = Early(ENDS[how]).eval(), torch.zeros(1, 1, 4, 4)
    with refused(
        BackendError, "test_python.py:", ": all is computed of all pictures of a batch together"
    ):
        smooth(network).certify(black, **FAST)

    (answer,) = smooth(network, batch=1).certify(black, stop="none", **FAST | {"n": 4000})

    assert answer.label == 0 and 3920 < answer.n_A < 3990  # 99 %; of batches it would be 4,000


class Calibrated(Brightness):
    """As networks that are calibrated by the mean of their first batches, of so many pictures."""

    def __init__(self, most, where):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.most, self.where, self.seen, self.kept = most, where, 0, 0.0

    def forward(self, x):
        if self.seen < self.most:
            self.seen += len(x) if self.where == "pictures" else 1
            self.kept += x.mean().item()
            self.mean = torch.tensor(self.kept)  # another tensor, and not other values of it
        return super().forward(x - (self.mean if self.where == "buffer" else self.kept))


@pytest.mark.parametrize("most", (1, 2, 5, 11, 23))
def test_a_network_that_is_set_by_its_first_calls_is_refused_however_many_these_are(most):
    for where in ("number", "buffer", "pictures"):
        with refused(BackendError, "Calibrated: ", "and keep it fixed"):
            smooth(Calibrated(most, where).eval(), batch=1).certify(IMAGES, **FAST)


class Ranged(Brightness):
    def forward(self, x):
        assert x.abs().numpy().max() < self.told, "a range"
        return super().forward(x)


class SetByFirst(Brightness):
    """As networks that take their normalisation from the first pictures, and keep it somewhere."""

    def __init__(self, where):
        super().__init__()
        self.register_buffer("m", torch.tensor(math.nan))
        self.where, self.inside, self.most = where, {}, None

    elsewhere: ClassVar[dict[str, Tensor]] = {}  # of all such networks, as what a closure keeps

    def forward(self, x):
        self.seen = x  # which no answer depends on
        if isinstance(self.where, float):  # as what finds out whether pixels end at 255
            self.most = x.mean() > self.where if self.most is None else self.most
            return super().forward(x / 255 if self.most else x)
        if self.where == "m":
            self.m.copy_(torch.where(self.m.isnan(), x.mean(), self.m))
            return super().forward(x - self.m)
        kept = {"attribute": vars(self), "dict": self.inside}.get(self.where, self.elsewhere)
        return super().forward(x - kept.setdefault("mean", x.mean()))


def test_guards_hold_for_networks_in_memory(tmp_path):
    for where in ("m", "attribute", "dict", -0.01, 0.3, 0.5, 1.0):
        unset = SetByFirst(where).eval()
        before = {key: str(value) for key, value in vars(unset).items()}
        with refused(BackendError, "SetByFirst: what it keeps changes with the pictures that"):
            smooth(unset).certify(IMAGES, **FAST)
        assert {key: str(value) for key, value in vars(unset).items()} == before
        unset(torch.full_like(IMAGES, 0.25))
        # Asked for one at a time, as most still take a mean of the batch, for nothing.
        assert len(smooth(unset, batch=1).certify(IMAGES, **FAST)) == 6
    with refused(BackendError, "SetByFirst: what it keeps changes with the pictures that"):
        smooth(SetByFirst("elsewhere").eval()).certify(IMAGES, **FAST)
    assert SetByFirst.elsewhere == {}  # the refusal set nothing
    with refused(BackendError, "depend on the other pictures of its batch"):
        smooth(Shuffled().eval()).certify(IMAGES, **FAST)
    for most in (1.5, 2.4):  # the checks see what most batches reach, drawing what few do
        kept = tmp_path / f"{most}.jsonl"
        with refused(BackendError, "picture's scores"):
            smooth(Scaled(most).eval()).certify(IMAGES, votes=kept, **FAST | {"n": 20_000})
        assert not kept.exists()
    for counts, said in ((range(2), "among 1 "), (range(50, 999), "among 1 "), ((32,), "among 32")):
        with refused(BackendError, f"a picture's scores {said}", "among 64, and nothing"):
            smooth(Counting(counts).eval()).certify(IMAGES, batch_size=64, **FAST)
    with refused(BackendError, "Linear does not run at 4 x 4"):
        smooth(nn.Linear(3, 2).eval()).certify(IMAGES, **FAST)
    empty = nn.Sequential(nn.Flatten(), nn.Linear(16, 2, device="meta")).eval()
    with refused(BackendError, "Sequential: tensors on the device meta have no values"):
        smooth(empty).certify(IMAGES, **FAST)
    for most in (1, 2.2, 2.7):  # refused by fixed pictures, by checks, and while drawing
        with refused(BackendError, "Ranged fails on", "as noise makes them: a range"):
            smooth(Ranged(most).eval()).certify(IMAGES, **FAST)
    with refused(BackendError, "device meta: "):
        smooth(net()).certify(IMAGES, devices=["meta"], **FAST)
    assert len(smooth(frozen()).certify(IMAGES, **FAST)) == len(IMAGES)
    with refused(BackendError, "Identity gives no scores of two classes", "[2, 1, 4, 4]"):
        smooth(nn.Identity().eval()).certify(IMAGES, **FAST)
    with refused(ConfigError, "classes: how many outputs"):
        rrcm.smooth(net(), sigma=SIGMA)
    with refused(BackendError, "Sequential: 1.", "is no plain tensor", "export it as an ONNX file"):
        smooth(quantised()).certify(IMAGES, **FAST)


def frozen() -> nn.Module:
    """A script whose flag of training is gone."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is to go
        return torch.jit.freeze(torch.jit.script(network))


def quantised() -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is to go
        return torch.ao.quantization.quantize_dynamic(network, {nn.Linear}).eval()


def test_what_is_no_classifier_is_told_what_is():
    with refused(ConfigError, "classifier: an nn.Module, an .onnx file or a name, got function"):
        rrcm.smooth(lambda x: x, sigma=SIGMA, classes=2)
    for name in ("net.pth", Path("some/net.safetensors"), ["a.pth.tar", Path("b.th")]):
        with refused(CheckpointError, "not found"):
            rrcm.smooth(name, sigma=SIGMA)


def test_an_argument_of_another_kind_of_classifier_is_refused():
    """As `--denoiser does not go with --onnx` in the shell: nothing is left out silently."""
    of_kind = {
        "weights": ("w.pth", "timm"),
        "denoiser": ("d.pth", "checkpoint"),
        "normalise": ("cifar10", "checkpoint"),
        "output": ("scores", "onnx"),
        "batch": (8, "onnx or module"),
    }
    kinds = {"net.onnx": "onnx", "resnet10t": "timm", "a.pth": "checkpoint", "a.py:f": "module"}
    for source, kind in kinds.items():
        for name, (value, takes) in of_kind.items():
            if kind not in takes:
                with refused(ConfigError, f"{name}: only {takes} takes it, not {kind}"):
                    rrcm.smooth(source, sigma=SIGMA, **{name: value})
    for asked in ({"resize": "crop"}, {"upright": False}):
        with refused(ConfigError, "resize, upright: give the shape=(C, H, W) of the pictures, too"):
            rrcm.smooth(net(), sigma=SIGMA, classes=2, **asked)


class Single(Brightness):
    """One logit of two classes, in one of its many forms."""

    def forward(self, x):
        return self.told(super().forward(x)[:, 1])


FORMS = {
    "logit": lambda logit: logit,
    "logit of two axes": lambda logit: logit[:, None],
    "1 x 1": lambda logit: torch.stack([-logit, logit], dim=1)[..., None, None],
    "class number": lambda logit: (logit > 0).long(),
    "a dictionary": lambda x: {"logits": torch.stack([-x, x], dim=1)},
    "of Hugging Face": lambda x: SimpleNamespace(logits=torch.stack([-x, x], dim=1)),
}


@pytest.mark.usefixtures("unforked")
def test_a_network_may_return_scores_of_other_forms():
    """A single one parts two classes at 0, and says so of one that has no sign."""
    wanted = said(opened().certify(IMAGES, **FAST))

    for name, form in FORMS.items():
        assert said(smooth(Single(form).eval()).certify(IMAGES, **FAST)) == wanted, name
    with refused(BackendError, "one number from 0 to 1, as a probability", "return the logit"):
        smooth(Single(torch.sigmoid).eval()).certify(IMAGES, **FAST)
    with refused(BackendError, "one whole number, as the number of a class", "return int64"):
        smooth(Single(lambda logit: (logit > 0).float()).eval()).certify(IMAGES, **FAST)


class Many(Brightness):
    """What ``told`` makes of the scores of seven classes, which follow the brightness."""

    def forward(self, x):
        bright = super().forward(x)[:, 1:]
        return self.told(torch.sin(bright * torch.arange(1, 8)) + 0.01 * torch.arange(7))


LISTS = {
    "whole numbers, all different": lambda scores: scores.topk(5).indices,
    "scores that fall from the first on": lambda scores: scores.topk(5).values,
}


@pytest.mark.parametrize("words", LISTS)
def test_the_likeliest_of_more_classes_are_no_scores(words):
    with refused(BackendError, "the network gives 5", words, "return the score of each class"):
        smooth(Many(LISTS[words]).eval(), classes=5).certify(IMAGES, **FAST)


def test_the_highest_of_scores_that_float32_rounds_to_one_is_the_class():
    x = IMAGES[:4]
    forms = (lambda s: s, lambda s: s.double() + 1e9, lambda s: (s * 1e6).long() + 2**40)

    made = [
        smooth(Many(form).eval(), classes=7).at((1, 4, 4)).backend.scores(x).argmax(1)
        for form in forms
    ]

    assert torch.equal(made[0], made[1]) and torch.equal(made[0], made[2])


@pytest.mark.usefixtures("unforked")
def test_an_exported_program_is_a_network():
    """Its flag says training, and eval() is refused; the batch it is made for is its only one."""
    wanted, open_ = said(opened().certify(IMAGES, **FAST)), ({0: torch.export.Dim("n")},)

    few, many = ({0: torch.export.Dim("n", min=low, max=most)} for low, most in ((2, 5), (3, 90)))
    cases = [(2, open_, 0), (1, None, 1), (4, None, 4), (2, (few,), 5), (3, (many,), 64)]
    for rows, dynamic, fixed in cases:
        program = torch.export.export(net(), (IMAGES[:rows],), dynamic_shapes=dynamic)
        inner = nn.Sequential(nn.Identity().eval(), program.module())
        for form in (program, program.module(), inner):
            made = smooth(form, shape=(1, 4, 4))
            assert made.backend.fixed == fixed
            assert said(made.certify(IMAGES, **FAST)) == wanted
    assert said(made.certify(IMAGES, batch_size=8, **FAST)) == wanted
    noisy = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(16, 2))  # exported as in training
    with refused(BackendError, "there is randomness inside, such as dropout"):
        smooth(torch.export.export(noisy, (IMAGES[:2],))).certify(IMAGES, **FAST)
    both = nn.Sequential(nn.Dropout(), program.module())
    with refused(BackendError, "Sequential: 0 is in training mode"):
        smooth(both).certify(IMAGES, **FAST)


class Built(nn.Module):
    """Makes its weights when it sees a picture, as lazy modules of many projects do."""

    def __init__(self, seed=None):
        super().__init__()
        self.seed = seed

    def forward(self, x):
        if not hasattr(self, "linear"):
            if self.seed is not None:
                torch.manual_seed(self.seed)
            self.linear = nn.Linear(x.flatten(1).shape[1], 2).eval()
        return self.linear(x.flatten(1))


class Hidden(nn.Module):
    """Makes its weights at the first picture and keeps them where PyTorch does not see them."""

    def __init__(self, make):
        super().__init__()
        self.make, self.kept = make, []

    def forward(self, x):
        if not self.kept:
            self.kept.append(self.make(x.flatten(1).shape[1]))
        return x.flatten(1) @ torch.as_tensor(self.kept[0], dtype=x.dtype)


def test_weights_that_a_first_picture_would_draw_are_refused():
    lazy = nn.Sequential(nn.Flatten(), nn.LazyLinear(2)).eval()
    built, drawn, unset = Built(seed=0).eval(), Built().eval(), "has no weights before the first"
    for network, said in (
        (lazy, f"Sequential: 1.weight {unset}"),
        (built, f"Built: linear.bias {unset}"),
        (drawn, "Built: what it keeps"),
    ):
        with refused(BackendError, said):
            smooth(network).certify(IMAGES, **FAST)
    assert isinstance(lazy[1], nn.LazyLinear) and not hasattr(built, "linear")  # as they were
    for make in (
        lambda k: torch.randn(k, 2),
        lambda k: np.random.randn(k, 2),
        lambda k: [[random.random(), random.random()] for _ in range(k)],
        lambda k: np.random.default_rng().normal(size=(k, 2)),
    ):
        hidden = Hidden(make).eval()
        with refused(BackendError, "Hidden: what it keeps", "the first one draws it at random"):
            smooth(hidden).certify(IMAGES, **FAST)
        assert hidden.kept == []
        hidden(IMAGES)
        assert len(smooth(hidden).certify(IMAGES, **FAST)) == 6
    lazy(IMAGES)
    assert len(smooth(lazy).certify(IMAGES, **FAST)) == 6


class Undefined(Brightness):
    """NaN where the first pixel is below a number, so for a share of the noise."""

    def forward(self, x):
        return super().forward(x) + torch.where(x.flatten(1)[:, :1] < self.told, math.nan, 0)


@pytest.mark.usefixtures("unforked")
def test_noise_without_scores_may_count_as_votes_for_no_class():
    """It counts in n and never for the class, and where it is the majority nothing is certified."""
    white, options = torch.ones(1, 1, 4, 4), FAST | {"stop": "none"}
    with refused(BackendError, "scores are NaN under noise", "--count-nan"):
        smooth(Undefined(0.0).eval()).certify(white, **options)

    (plain,) = opened().certify(white, **options)
    (some,) = (got := smooth(Undefined(0.0).eval(), count_nan=True).certify(white, **options))
    (most,) = smooth(Undefined(1.5).eval(), count_nan=True).certify(white, **options)

    *_, (_, votes) = got.rows[0].looks
    assert got.header.classes == ["0", "1", "(no class)"]
    assert votes[2] == pytest.approx(1000 * 0.0228, abs=15)  # the first pixel is N(1, 1/4)
    assert plain.n_A == 1000 and some.n_A == 1000 - votes[2] and some.n == 1000
    assert some.label == 1 and 0 < some.radius < plain.radius
    assert most.abstained and most.radius == 0
    with refused(DataError, "2 is none of the 2"):
        smooth(Undefined(0.0).eval(), count_nan=True).certify(white, labels=[2], **options)


def test_a_classifier_can_be_copied_and_sent_to_another_process():
    smoothed = smooth(net(), shape=(1, 4, 4))
    wanted = smoothed.answer(IMAGES[0], seed=3)

    for copied in (copy.deepcopy(smoothed), pickle.loads(pickle.dumps(smoothed))):
        assert copied.backend.network is not smoothed.backend.network
        assert copied.answer(IMAGES[0], seed=3) == wanted


class Half(nn.Module):
    """A denoiser that halves what differs from grey."""

    def __init__(self, share=0.5):
        super().__init__()
        self.register_buffer("share", torch.tensor(share))

    def forward(self, x):
        return 0.5 + self.share * (x - 0.5)


def test_a_denoiser_in_front_is_a_part_of_the_function():
    """Noisy pixels, denoised pixels, classifier: another function, with a digest of its own."""
    behind, alone = smooth(nn.Sequential(Half(), net()).eval()), opened()

    scores = behind.at((1, 4, 4)).backend.scores(IMAGES)

    assert torch.allclose(scores, net()(Half()(IMAGES)), atol=1e-5)
    digests = {one.certify(IMAGES[:1], **FAST).header.weights for one in (behind, alone)}
    assert len(digests) == 2


# Threads.


class Keeping(Brightness):
    """Keeps what it computes where it is told, and reads it again, while other threads run."""

    def forward(self, x):
        kept = vars(self) if self.told is None else self.told
        kept["x"] = x
        time.sleep(1e-4)
        return super().forward(kept["x"])


def hooked() -> nn.Module:
    """Answers from what a hook keeps on it; a copy answers from what it was copied with."""
    network = nn.Sequential(nn.Identity(), Brightness()).eval()
    network[0].register_forward_hook(lambda layer, x, y: setattr(network, "seen", y))
    network[1].register_forward_pre_hook(lambda layer, x: (time.sleep(1e-4), network.seen)[1:])
    return network


class Everywhere(dict):
    """A copy of it is the same."""

    def __deepcopy__(self, memo):
        return self


def locked() -> nn.Module:
    """Cannot be copied."""
    network = Keeping(None).eval()
    network.lock = threading.Lock()
    return network


KEEPING = {
    "itself": lambda: Keeping(None).eval(),
    "a hook": hooked,
    "a variable of its module": lambda: Keeping(Everywhere()).eval(),
    "what cannot be copied": locked,
}


@pytest.mark.usefixtures("unforked")
@pytest.mark.parametrize("where", KEEPING)
def test_pictures_of_several_threads_do_not_meet(where: str):
    """Whatever a network keeps between two layers, and wherever."""
    smoothed = smooth(KEEPING[where]())

    found = smoothed.certify(IMAGES, workers=4, **FAST)

    assert said(found) == said(opened().certify(IMAGES, workers=1, **FAST))
    assert said(smoothed.certify(IMAGES, devices=["cpu"] * 3, **FAST)) == said(found)


def test_threads_share_parameters_and_run_at_a_time():
    """Each thread has a copy; threads that waited for each other would break the barrier."""
    together = threading.Barrier(2)

    class Meeting(Brightness):
        def forward(self, x):
            if len(x) == 3:
                together.wait(10)
            return super().forward(x)

    network = Meeting().eval()
    backend = smooth(network, shape=(1, 4, 4)).backend
    with ThreadPoolExecutor(2) as pool:
        _ = [*pool.map(backend.scores, IMAGES.split(3))]

    assert all(copied.weight is network.weight for copied in backend._idle)


def test_a_network_that_was_trained_since_it_was_opened_is_refused(tmp_path: Path):
    smoothed, path = smooth(network := net(), shape=(1, 4, 4)), tmp_path / "votes.jsonl"
    smoothed.certify(IMAGES, **FAST)
    network.weight.data[0] = -1

    with refused(BackendError, "the classifier has changed since it was checked"):
        smoothed.certify(IMAGES, votes=path, **FAST)

    assert not path.exists()


def test_a_thread_that_cannot_be_started_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    """Two threads in step: the first would wait 30 s for the second."""
    start, calls = threading._start_new_thread, itertools.count()

    def refuse(*arguments):
        if next(calls):
            raise RuntimeError("can't start new thread")
        return start(*arguments)

    monkeypatch.setattr(threading, "_start_new_thread", refuse)
    before = time.monotonic()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        _probes.in_step(net(), IMAGES.split(3))
    assert time.monotonic() - before < 15


@pytest.mark.usefixtures("unforked")
def test_a_network_that_cannot_be_copied_stays_on_its_device():
    for where in ("a hook", "a variable of its module", "what cannot be copied"):
        with refused(BackendError, "device meta: the network cannot be copied", "on cpu"):
            smooth(KEEPING[where]()).certify(IMAGES, devices=["meta"], **FAST)


HALVES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@pytest.mark.usefixtures("unforked")
def test_precision_is_the_networks_own():
    double, single = smooth(net().double()), opened()

    assert double.at((1, 4, 4)).backend.dtype == torch.float64
    precisions = [smooth(net().to(kind)).at((1, 4, 4)).draws.precision for kind in HALVES]
    assert precisions == ["bf16", "fp16", "fp32", "fp64"]
    a, b = double.certify(IMAGES, **FAST), single.certify(IMAGES, **FAST)
    assert [x.label for x in a] == [x.label for x in b]
    assert a.header.weights != b.header.weights


# Drawing.


def test_devices_share_the_draws(monkeypatch: pytest.MonkeyPatch):
    whole, counters, counted = voting.counter, [], []

    def counter(backend, split, **how):
        counters.append(backend)

        def count(pieces):
            counted.append(backend)
            time.sleep(0.01)  # so that the other one gets a call
            return whole(backend, split, **how)(pieces)

        return count

    monkeypatch.setattr(voting, "counter", counter)

    opened().certify(IMAGES, devices=["cpu", "cpu"], **FAST)

    first, second = counters
    assert first.network is not second.network
    assert all(counted.count(each) > 1 for each in counters)


def test_a_budget_begins_with_the_call():
    with refused(ConfigError, "budget: the 1e-09 s were over before the first draw"):
        smooth().certify(IMAGES, budget=1e-9, **FAST)


class Interrupted(Exception):
    pass


def test_votes_are_kept_and_an_interrupted_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, fresh = tmp_path / "new" / "votes.jsonl", FAST | {"seed": None}
    whole, kept, drawn = sampler.VoteSampler._keep, [], []

    def stops(self, job):
        whole(self, job)
        kept.extend([job.row] * job.done)
        if len(kept) == 2:
            raise Interrupted

    monkeypatch.setattr(sampler.VoteSampler, "_keep", stops)
    with pytest.raises(Interrupted):
        opened().certify(IMAGES, votes=path, workers=1, **fresh)
    assert not path.exists()
    monkeypatch.setattr(
        sampler.VoteSampler, "_keep", lambda self, job: (drawn.append(job.row), whole(self, job))
    )

    rest = opened().certify(IMAGES, votes=path, workers=1, **fresh)
    again = opened().certify(IMAGES, votes=path, **fresh)

    assert not {*drawn} & {*kept} and {*drawn, *kept} == {*range(6)}
    wanted = opened().certify(IMAGES, **FAST | {"seed": rest.header.seed})
    assert said(again) == said(rest) == said(wanted)
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "votes.jsonl",
        "votes.jsonl.clean.json",
    ]
    with refused(VotesError, "holds votes of another classifier or setting: n was 1000"):
        opened().certify(IMAGES, votes=path, **fresh | {"n": 2000})
    with refused(VotesError, "weights was"):
        smooth(swapped()).certify(IMAGES, votes=path, **fresh)


def swapped() -> nn.Module:
    """Brightness of `net`, with the same name and tensors, and two scores swapped."""
    network = net()
    network.forward = lambda x: Brightness.forward(network, x).flip(1)
    return network


@pytest.mark.usefixtures("unforked")
def test_votes_are_of_a_function_and_not_of_its_tensors():
    """Two of a hundred scores that are swapped, or another activation, make another function."""
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 100)]
    network, other = nn.Sequential(*layers).eval(), nn.Sequential(*layers).eval()
    order = [*range(100)]
    order[70], order[71] = 71, 70
    other.register_forward_hook(lambda network, x, scores: scores[:, order])
    smoother = nn.Sequential(*layers[:2], nn.GELU(), layers[3]).eval()

    found = [
        smooth(one, classes=100, shape=(1, 4, 4)).backend.weights
        for one in (network, copy.deepcopy(network), other, smoother)
    ]

    assert found[0] == found[1] and len({*found}) == 3


@pytest.mark.usefixtures("unforked")
def test_votes_are_of_a_function_that_two_classes_tell_apart():
    """Few scores differ by their order, so that operations and their constants do."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).eval()
    changes = [
        lambda x: x,
        lambda x: x.clamp(0, 1),
        lambda x: (x * 255).round() / 255,
        lambda x: (x * 256).round() / 256,
    ]
    found = []
    for change in changes * 2:
        other = copy.deepcopy(network)
        other.register_forward_pre_hook(lambda network, x, change=change: change(x[0]))
        found.append(smooth(other, classes=2, shape=(1, 4, 4)).backend.weights)

    assert found[:4] == found[4:] and len({*found}) == 4


def test_a_batch_is_as_large_as_is_fast_unless_votes_have_another(tmp_path: Path):
    """Activations of 16 MB: 8 MB of 256 x 256 pixels, and by then 8 kB of 8 x 8."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 32, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 2)
    network, path = smooth(nn.Sequential(*layers).eval()), tmp_path / "votes.jsonl"

    assert network.at((1, 256, 256)).draws.batch_size == 2
    assert network.at((1, 8, 8)).draws.batch_size == 64
    assert opened().certify(IMAGES, votes=path, batch_size=16, **FAST).header.batch_size == 16
    assert opened().certify(IMAGES, votes=path, **FAST).header.batch_size == 16
    with refused(VotesError, "batch_size was 16, is 8"):
        opened().certify(IMAGES, votes=path, batch_size=8, **FAST)


# Tables and pages.


def test_a_report_is_a_table_and_a_page(tmp_path: Path):
    answers = opened().certify(IMAGES, radii=[0.0, 0.25], **FAST)
    table = pd.DataFrame([dataclasses.asdict(a) for a in answers])

    page = rrcm.report({"mine": answers, "same": answers}, LABELS)
    page.save(tmp_path / "deep" / "page.html")
    page.save(tmp_path / "folder")

    right = int((table["label"] == LABELS).sum())
    assert page.table["r = 0"][0].startswith(f"≥ {math.floor(1000 * right / 6) / 10} [")
    assert [*page.table["method"]] == ["mine", "same"] and "r = 0.25" in page.table
    assert "mine" in (tmp_path / "deep/page.html").read_text()
    assert (tmp_path / "folder/certified_accuracy.png").exists()
    assert "answered, r = 0" in rrcm.report(answers).table
    answers = opened().certify(IMAGES, labels=LABELS, radii=[0.0, 0.25], **FAST)
    for labels, words in [
        (LABELS[:2], "not an integer for each of 6"),
        ([9] * 6, "labels: 9 is none of the 2 classes, from 0"),
        ([*LABELS[:5], 1 - LABELS[5]], "labels: image 5 is"),
    ]:
        with refused(DataError, words):
            rrcm.report(answers, labels)
    some = rrcm.report(answers[1:3], LABELS[1:3])
    assert said(answers[1:3]) == said(answers)[1:3] and [*answers[::2].to_pandas()["idx"]] == [
        0,
        2,
        4,
    ]
    assert some.table.equals(rrcm.report(answers, [-1, *LABELS[1:3], -1, -1, -1]).table)
    line = "duplicates: 1 of 3 pictures equal others"
    with pytest.warns(PlausibilityWarning, match=line):
        again = opened().certify(torch.cat([IMAGES[:1], IMAGES[:2]]), **FAST)
    assert line in repr(rrcm.report(again)) and line not in repr(rrcm.report(again[1:]))
    rrcm.report(again).save(tmp_path / "again.html")
    assert line in (tmp_path / "again.html").read_text()
    (tmp_path / "file").touch()
    for place in ("file/page.html", "file"):
        with refused(DataError, f"{tmp_path}/file", "a file lies where a folder has to be"):
            page.save(tmp_path / place)
    with refused(DataError, "image: expected one picture, got 6"):
        opened().answer(IMAGES)
    assert "of the labelled images (2 of 6)" in repr(rrcm.report(answers, [-1] * 4 + LABELS[4:]))
    for none, words in [({}, "report: no answers were"), (answers[:0], "classifier: no answers")]:
        with refused(DataError, words):
            rrcm.report(none, [])
    with refused(ConfigError, "confidence: must be in (0, 1), got 1.5"):
        rrcm.report(answers, confidence=1.5)


def test_what_looks_wrong_is_warned_of_and_in_the_report():
    """Pixels of 0..16 that nobody scaled are dark to every network; labels may come later."""
    dark = torch.arange(320).remainder(17).to(torch.uint8).view(20, 1, 4, 4)  # 17 are different
    with pytest.warns(PlausibilityWarning) as warned:
        answers = opened().certify(dark, **FAST)

    texts = [str(one.message).partition(",")[0] for one in warned]
    assert texts == [
        "duplicates: 3 of 20 pictures equal others; intervals are of independent ones",
        "no pixel is brighter than 0.0627",
        "20 of 20 pictures are answered '0' without noise: check mean",
    ]
    assert {one.filename for one in warned} == {__file__}
    labelled = repr(rrcm.report({"mine": answers}, [0, 1] * 10))
    assert "mine: 20 of 20 pictures are answered '0' without noise, though 10" in labelled
    assert "3 of 20 pictures equal others, 3 of them under another label" in labelled
    with pytest.warns(PlausibilityWarning, match="no pixel is brighter than 0.0627"):
        opened().certify(dark, budget=60.0, **FAST)


def test_a_place_where_nothing_can_be_written_is_refused_at_once(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(sampler.VoteSampler, "draw_votes", None)
    (tmp_path / "file").touch()
    for name, why in [("file/a.jsonl", "a file lies where"), ("file/b/a", "a file lies"), ("", "")]:
        place = tmp_path / name
        with refused(DataError, f"{place}: {why}"):
            opened().certify(IMAGES, votes=place, **FAST)


# Openers.


def test_the_package_alone_is_light():
    code = "import sys, rrcm; print({'torch', 'numpy', 'pandas', 'scipy'} & {*sys.modules})"

    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"
    assert dir(rrcm) == sorted(rrcm.__all__)
    for name in rrcm.__all__:
        assert getattr(rrcm, name)
    assert rrcm.certificates.cohen.certify and rrcm.stopping.grid.Rule
    with pytest.raises(AttributeError, match="has no attribute 'smoothed_'"):
        _ = rrcm.smoothed_


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)

    found = doctest.testfile(
        str(ROOT / "docs/python.md"),
        module_relative=False,
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
    )

    assert found.failed == 0 and found.attempted > 10
    assert "Certified accuracy" in Path("page.html").read_text()


class Elsewhere(nn.Module):
    """Scores are distances from two prototypes that are no parameters."""

    def __init__(self, kind: str, change: float = 0.0) -> None:
        super().__init__()
        wanted = torch.linspace(0.2, 0.8, 2).repeat(16, 1).T + torch.tensor([[0.0], [change]])
        self.kind = kind
        if kind == "buffer that is not saved":
            self.register_buffer("kept", wanted, persistent=False)
        elif kind == "list":
            self.kept = [*wanted]
        else:
            self.kept = wanted.numpy() if kind == "array" else wanted

    def forward(self, x):
        if self.kind == "array":
            kept = torch.from_numpy(self.kept)
        else:
            kept = torch.stack(self.kept) if self.kind == "list" else self.kept
        return -torch.cdist(x.flatten(1), kept)


@pytest.mark.usefixtures("unforked")
@pytest.mark.parametrize("kind", ["attribute", "list", "array", "buffer that is not saved"])
def test_votes_of_prototypes_are_not_those_of_slightly_other_ones(tmp_path: Path, kind: str):
    """Whose scores are in the same order for all pictures of the fingerprint."""
    path = tmp_path / "votes.jsonl"
    drawn = smooth(Elsewhere(kind).eval()).certify(IMAGES, votes=path, **FAST)

    assert said(smooth(Elsewhere(kind).eval()).certify(IMAGES, votes=path, **FAST)) == said(drawn)
    with refused(VotesError, "holds votes of another classifier"):
        smooth(Elsewhere(kind, change=1e-4).eval()).certify(IMAGES, votes=path, **FAST)


class Cascade(nn.Module):
    """A cheap answer where it is sure, else another one; where, only Python knows."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.cheap, self.threshold = Brightness(), threshold

    def forward(self, x):
        scores = self.cheap(x)
        unsure = [row for row, score in enumerate(scores) if abs(float(score[1])) > self.threshold]
        scores[unsure] = scores[unsure].flip(1)
        return scores


@pytest.mark.usefixtures("unforked")
def test_votes_of_a_cascade_are_not_those_of_another_threshold(tmp_path: Path, monkeypatch):
    """Finished votes, and those of an interrupted call; the same cascade goes on with both."""
    path, many = tmp_path / "votes.jsonl", FAST | {"n0": 100}
    drawn = smooth(Cascade(6.0).eval()).certify(IMAGES, votes=path, **many)

    assert said(smooth(Cascade(6.0).eval()).certify(IMAGES, votes=path, **many)) == said(drawn)
    with refused(VotesError, "votes.jsonl: votes of another classifier: drawn again"):
        smooth(Cascade(4.0).eval()).certify(IMAGES, votes=path, **many)
    path.rename(tmp_path / "votes.jsonl.journal")
    with refused(VotesError, "the journal: votes of another classifier: drawn again"):
        smooth(Cascade(4.0).eval()).certify(IMAGES, votes=path, **many)
    assert said(smooth(Cascade(6.0).eval()).certify(IMAGES, votes=path, **many)) == said(drawn)
