"""Judgement of pictures that others found, where the boundary of the smoothed classifier is known.

Of a half-space it is that of the half-space. Of a disc of radius r it is a disc of radius rho, at
which a noncentral chi-squared variable is below (r / sigma)^2 with probability 1/2.
"""

import importlib
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import export_elsewhere, refused
from scipy.optimize import brentq
from scipy.stats import ncx2
from torch import nn
from workspace import ROOT

import rrcm
from rrcm.certification.smoothed import Smoothed
from rrcm.core.errors import ConfigError, DataError

pytestmark = pytest.mark.usefixtures("unforked")
SIGMA, R = 0.25, 0.6
RHO = brentq(lambda rho: ncx2.cdf((R / SIGMA) ** 2, 4, (rho / SIGMA) ** 2) - 0.5, 0.01, R)
IMAGES, SETS = 50, 200  # 10,000 candidates
QUIET = {"n": 100, "n0": 20, "alpha": 0.001, "progress": False}


class HalfSpace(nn.Module):
    """Class 1 where the pixels of 2 x 2 add up to more than 2."""

    def forward(self, x):
        side = 4 * (x.flatten(1).sum(dim=1) - 2)
        return torch.stack([-side, side], dim=1)


class Disc(nn.Module):
    """Class 1 within R of grey."""

    def forward(self, x):
        inside = R - (x - 0.5).flatten(1).norm(dim=1)
        return torch.stack([-inside, inside], dim=1)


def image(kind: type[nn.Module]) -> tuple[torch.Tensor, float]:
    """A picture of class 1, and its distance to the boundary."""
    if kind is HalfSpace:
        return torch.full((1, 2, 2), 0.6), 0.2
    return torch.full((1, 2, 2), 0.52), RHO - 0.04


def near(kind: type[nn.Module], share: float, towards: float) -> torch.Tensor:
    """Candidates [SETS, IMAGES, ...] at up to ``share`` of the distance to the boundary."""
    x, distance = image(kind)
    generator = torch.Generator().manual_seed(1)
    normal = torch.full_like(x, -0.5 if kind is HalfSpace else 0.5)
    way = normal + (1 - towards) * torch.randn(SETS, IMAGES, *x.shape, generator=generator)
    way /= way.flatten(2).norm(dim=2)[..., None, None, None]
    length = share * distance * torch.rand(SETS, IMAGES, 1, 1, 1, generator=generator) ** 0.1
    return (x + length * way).clamp(0, 1)


@pytest.fixture(scope="module", params=[HalfSpace, Disc])
def known(request):
    """A classifier, many copies of one picture, and their answers."""
    smoothed = rrcm.smooth(request.param().eval(), sigma=SIGMA, classes=2)
    images = image(request.param)[0].expand(IMAGES, 1, 2, 2)
    answers = smoothed.certify(images, labels=[1] * IMAGES, seed=5, **QUIET)
    return smoothed, request.param, images, answers


def distances(known, candidates, **how) -> np.ndarray:
    smoothed, _, images, answers = known
    if how:
        how |= {name: value for name, value in QUIET.items() if name not in how}
    else:
        how = {"answers": answers, "progress": False}
    return np.array(smoothed.judge(images, [1] * IMAGES, candidates, **how).attacked["attacked"])


def test_no_candidate_nearer_than_the_boundary_succeeds(known):
    kind, boundary = known[1], image(known[1])[1]

    assert np.isnan(distances(known, near(kind, 0.999, towards=1))).all()
    # the controls: at the confidence of a coin they do, and beyond the boundary at this one
    assert not np.isnan(distances(known, near(kind, 0.999, towards=1), alpha=0.5)).all()
    beyond = distances(known, near(kind, 2.5, towards=0.9)[:3])
    assert np.isfinite(beyond).mean() > 0.9 and np.nanmin(beyond) > boundary


def test_what_is_certified_is_never_more_than_what_candidates_leave(known):
    found = distances(known, near(known[1], 2.5, towards=0.9)[:3])
    for radius in (0.0, 0.05, 0.1, 0.2, 0.3):
        certified = [answer.label == 1 and answer.robust_at(radius) for answer in known[3]]

        assert np.mean(certified) <= np.mean(~(found <= radius))


def test_a_candidate_that_fails_hides_no_nearer_one(known):
    _, kind, images, _ = known
    far, hit = images.clone(), near(kind, 2.5, towards=1)[:1]
    if kind is HalfSpace:
        far = (images + 0.39).clamp(0, 1)  # away from the boundary, and farther than any

    alone, both = distances(known, hit), distances(known, [*hit, far])

    assert np.isfinite(alone).mean() > 0.5
    assert np.isfinite(both).mean() > 0.5  # with noise of their own


def test_an_image_that_is_wrong_is_its_own_candidate(known):
    smoothed, _, images, _ = known
    wrong = smoothed.certify(images[:3], labels=[0] * 3, seed=5, **QUIET)

    got = smoothed.judge(images[:3], [0] * 3, images[:3] * 0.9, answers=wrong, progress=False)

    assert got.attacked == {"attacked": [0.0] * 3, "attacked_to": [1] * 3}


def test_changed_candidates_are_judged_by_other_noise(known, monkeypatch, tmp_path: Path):
    seeds, answer = [], Smoothed.answer

    def spied(self, image, *, idx, seed):
        seeds.append(seed)
        return answer(self, image, idx=idx, seed=seed)

    monkeypatch.setattr(Smoothed, "answer", spied)
    smoothed, kind, images, answers = known
    how = {"answers": answers[:1], "progress": False}
    hit = near(kind, 2.5, towards=1)[0]
    one = smoothed.judge(images, None, hit, path=tmp_path / "a.json", **how)
    again = smoothed.judge(images, None, hit, path=tmp_path / "a.json", **how)  # is read
    smoothed.judge(images, None, hit * 0.999, **how)

    assert one.attacked == again.attacked and len(seeds) == len({*seeds}) == 2
    assert answers.header.seed not in seeds


def test_the_model_for_libraries_is_the_mean_probability(known, tmp_path: Path):
    smoothed, kind, _, _ = known
    model = smoothed.expected(copies=8, seed=3)
    x = near(kind, 1, towards=0)[0, :5].requires_grad_()
    log_p = model(x)
    noisy = x + model.noise  # [m, B, ...]
    p = torch.stack([kind()(copy).softmax(dim=1) for copy in noisy]).mean(dim=0)

    torch.testing.assert_close(log_p.exp(), p)
    torch.testing.assert_close(model(x[2:3]), log_p[2:3])
    assert model.noise.shape == (8, 1, 1, 2, 2) and 0.1 < float(model.noise.std()) < 0.4
    assert torch.equal(smoothed.expected(copies=8, seed=3)(x), log_p)
    asked_before = smoothed.expected(copies=8, seed=4)
    with torch.no_grad():
        asked_before(x)
    assert not torch.equal(asked_before(x), log_p)
    assert torch.autograd.grad(asked_before(x)[:, 0].sum(), x)[0].abs().sum() > 0
    assert torch.autograd.grad(log_p[:, 0].sum(), x)[0].abs().sum() > 0
    export_elsewhere(kind().eval(), torch.zeros(16, 1, 2, 2), tmp_path / "net.onnx", fixed=True)
    file = rrcm.smooth(tmp_path / "net.onnx", sigma=SIGMA)
    torch.testing.assert_close(file.expected(copies=8, seed=3)(x), log_p.detach())
    with refused(ConfigError, "copies: must be positive, got 0"):
        smoothed.expected(copies=0)


def test_an_onnx_file_is_attacked_by_the_gradients_of_a_network(known, tmp_path: Path):
    network, kind, images, _ = known
    export_elsewhere(kind().eval(), torch.zeros(16, 1, 2, 2), tmp_path / "net.onnx", fixed=True)
    file, x = rrcm.smooth(tmp_path / "net.onnx", sigma=SIGMA), images[:2].clone()
    (ascent,) = torch.autograd.grad(-network.expected()(x.requires_grad_())[:, 1].sum(), x)
    ascent /= ascent.flatten(1).norm(dim=1)[:, None, None, None]
    steps = [(x + length * ascent).clamp(0, 1).detach() for length in (0.25, 0.45, 0.9)]

    found = file.judge(x.detach(), [1] * 2, steps, **QUIET).attacked["attacked"]

    assert all(image(kind)[1] < apart < math.inf for apart in found)


def test_candidates_that_are_of_no_image_are_refused(known):
    smoothed, _, images, answers = known
    few, how = images[:2], {"answers": answers, "progress": False}
    for candidates, words in (
        (few, "candidates: 2 pictures for 50 images; give one for each, in their order"),
        (images + 0.7, "candidates: image 0: values from 1."),
        (images * math.nan, "candidates: image 0: pixels are NaN"),
        ([torch.zeros(IMAGES, 1, 3, 3)], "candidates: image 0: its shape is (1, 3, 3), not"),
        ([], "candidates: no images were given"),
    ):
        with refused(DataError, words):
            smoothed.judge(images, None, candidates, **how)


@pytest.mark.parametrize("library", ["torchattacks", "foolbox"])
def test_the_snippets_of_the_page_run(known, library: str):
    pytest.importorskip(library)
    page = (ROOT / "docs/certifying.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (snippet,) = [text for text in snippets if f"import {library}" in text]
    smoothed, kind, images, _ = known
    names = {"smoothed": smoothed, "images": images[:4].clone(), "labels": torch.ones(4).long()}

    exec(snippet, names)

    found = np.array(names["answers"].attacked["attacked"])
    assert np.isfinite(found).all() and (found > image(kind)[1]).all()


@pytest.mark.parametrize(
    ("library", "place", "search"),
    [
        (
            "art",
            "art.estimators.classification.PyTorchClassifier",
            "art.attacks.evasion.ProjectedGradientDescentPyTorch(model, norm=2, eps=0.9,"
            " eps_step=0.1, max_iter=20, verbose=False).generate(images.numpy())",
        ),
        ("autoattack", "autoattack.AutoAttack", "model.run_standard_evaluation(images, labels)"),
    ],
)
def test_the_adapters_of_the_page_are_taken(known, library: str, place: str, search: str):
    pytest.importorskip(library)
    module, name = place.rsplit(".", 1)
    page = (ROOT / "docs/certifying.md").read_text()
    (adapter,) = re.findall(rf"`({name}\(.*?\))`", page, re.DOTALL)
    smoothed, kind, images, _ = known
    names = {name: getattr(importlib.import_module(module), name), "smoothed": smoothed}
    names |= {"images": images[:4].clone(), "labels": torch.ones(4).long(), "torch": torch}
    names |= {"shape": (1, 2, 2), "classes": 2, library: importlib.import_module(library)}
    names["model"] = eval(adapter, names)

    found = smoothed.judge(names["images"], [1] * 4, eval(search, names), **QUIET).attacked

    assert all(image(kind)[1] < apart < math.inf for apart in found["attacked"])
