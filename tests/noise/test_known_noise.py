"""Whoever knows the noise can make a picture whose certificate is false; so nobody knows it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from builders import export_elsewhere, refused
from PIL import Image
from scipy.stats import ncx2
from torch import Tensor, nn

from rrcm.certification.distributions import gaussian
from rrcm.cli import requests
from rrcm.cli.commands import on_demand, predict
from rrcm.cli.options import Options
from rrcm.cli.project import Project
from rrcm.core.errors import ConfigError

SIGMA, SHAPE, LENGTH = 0.5, (3, 32, 32), 12.0
PIXELS = 3 * 32 * 32


class Far(nn.Module):
    """Class 1 where a picture is further from grey than the square root of ``limit``."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        distance = (x - 0.5).flatten(1).square().sum(dim=1, keepdim=True)
        return torch.cat([torch.zeros_like(distance), distance - self.limit], dim=1)


@pytest.fixture
def attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A picture made for seed 0, image 0, and a network to which it is of class 0."""
    monkeypatch.chdir(tmp_path)
    draws = torch.arange(1100)
    zeros = torch.zeros(1, *SHAPE).expand(len(draws), -1, -1, -1)
    noise = gaussian.noisy(
        zeros, 1.0, seed=0, images=torch.zeros_like(draws), draws=draws, max_value=255
    )
    direction = noise.double().mean(dim=0).numpy()
    x = 0.5 + LENGTH * direction / np.linalg.norm(direction)
    pixels = np.round(255 * x).astype(np.uint8)
    Image.fromarray(pixels.transpose(1, 2, 0)).save("attack.png")
    away = float(((pixels / 255 - 0.5) ** 2).sum())
    # P[class 1] is .445: |x - 1/2 + sigma z|^2 / sigma^2 is a noncentral chi-square variable
    limit = SIGMA**2 * float(ncx2.isf(0.445, PIXELS, away / SIGMA**2))
    export_elsewhere(Far(limit), torch.zeros(2, *SHAPE), Path("net.onnx"), fixed=False)
    return tmp_path / "attack.png"


def asked(**options) -> requests.Request:
    given = {"onnx": "net.onnx", "sigma": SIGMA, "n": 1000, "stop": "none", "resize": "exact"}
    return requests.resolve(Options(**given | options), Project())


def test_the_answer_for_a_picture_file_has_fresh_noise(attack: Path):
    """Under the noise that its maker knew, the picture is certified as class 1; it is class 0."""
    known = predict.predict(asked(seed=0), str(attack))
    assert "class 1, certified" in known and "--seed 0 repeats it" in known

    answers = [predict.predict(asked(), str(attack)) for _ in range(4)]

    assert not any("class 1" in answer for answer in answers)
    seeds = [int(answer.rpartition("--seed ")[2].split()[0]) for answer in answers]
    assert len({*seeds}) == 4
    assert predict.predict(asked(seed=seeds[0]), str(attack)) == answers[0]
    for seed in (-1, 2**64):
        with refused(ConfigError, "seed", str(seed)):
            asked(seed=seed)


def test_folders_have_fresh_noise_that_is_kept_until_the_pictures_change(attack: Path):
    """Drawn once: stopped and started again, the same request goes on with the same noise."""
    folder = attack.parent / "photos"
    folder.mkdir()
    attack.rename(folder / "a.png")
    request = asked(images=folder, n=200)

    def seed_of(request) -> int:
        return on_demand.header_of(request, request.opened()).seed

    first = seed_of(request)
    assert first == seed_of(request) == seed_of(asked(images=folder, n=200, shard="1/2")) > 2**32
    assert seed_of(asked(images=folder, n=200, seed=7)) == 7
    assert seed_of(asked(images=folder, n=300)) != first
    Image.new("RGB", (32, 32)).save(folder / "b.png")
    assert seed_of(request) != first
    printed = on_demand.certify(request)
    assert f"--seed {seed_of(request)}" in printed


def test_an_answer_says_by_which_rule_its_draws_ended(attack: Path):
    """Two rules give one picture two radii; both commands take both."""
    for options, rule in (
        ({"stop": "none"}, "none: all 1,000 draws of every image"),
        (
            {"stop": "anytime"},
            "anytime: until 1,000 draws would add less than 0.05 to a radius (0.1 sigma)",
        ),
        ({"stop": None, "radii": "0,0.3"}, "spending: until the radii 0, 0.3 are decided"),
    ):
        assert f"stopping rule {rule}" in predict.predict(asked(**options), str(attack))


def test_radii_that_are_asked_for_are_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By the default rule, unless another is named."""
    monkeypatch.chdir(tmp_path)  # where there is no params.yaml
    given = {"onnx": "net.onnx", "sigma": SIGMA, "radii": "0.3,0.1"}

    wanted = requests.resolve(Options(**given), Project())
    assert (wanted.sample.stop, wanted.stopping["radii"]) == ("spending", [0.1, 0.3])
    assert wanted.report.radii == [0.1, 0.3]
    assert requests.resolve(Options(**given, stop="none"), Project()).sample.stop == "none"
    assert requests.resolve(Options(**given, stop="anytime"), Project()).sample.stop == "anytime"
    with refused(ConfigError, "--radii: expected radii such as 0,0.25,0.5, got '-1'"):
        requests.resolve(Options(**given | {"radii": "-1"}), Project())
