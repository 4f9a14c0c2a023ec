"""Whoever knows the noise can make a picture whose certificate is false; so nobody knows it."""

import shutil
from pathlib import Path

import pytest
import torch
from builders import export_elsewhere, refused
from PIL import Image
from torch import nn

from rrcm.cli import requests
from rrcm.cli.commands import on_demand, predict
from rrcm.cli.options import Options
from rrcm.cli.project import Project
from rrcm.core.errors import ConfigError

SIGMA = 0.5


@pytest.fixture
def picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A picture that somebody sent, and a network beside it."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    export_elsewhere(network, torch.zeros(2, 1, 4, 4), Path("net.onnx"), fixed=False)
    Image.new("L", (4, 4), 99).save("picture.png")
    return tmp_path / "picture.png"


def asked(**options) -> requests.Request:
    given = {"onnx": "net.onnx", "sigma": SIGMA, "n": 1000, "stop": "none", "resize": "exact"}
    return Project().request(Options(**given | options))


def test_the_answer_for_a_picture_file_has_noise_that_is_kept(picture: Path):
    """Whoever asks again for the same pixels under the same settings cannot choose."""
    Image.new("L", (4, 4), 99).save("same.bmp")
    Image.new("L", (4, 4), 98).save("other.png")
    tries = [(asked(), name) for name in ("picture.png", "picture.png", "same.bmp", "other.png")]
    tries += [(asked(**change), "picture.png") for change in ({"alpha": 0.01}, {"n": 999})]

    said = [predict.predict(*one).partition(": ")[2] for one in tries]

    seeds = [int(answer.rpartition("--seed ")[2].split()[0]) for answer in said]
    assert said[0] == said[1] == said[2] and len({*seeds}) == 4 and max(seeds) > 2**32
    assert predict.predict(asked(seed=seeds[0]), str(picture)).endswith(said[0])
    shutil.rmtree(".rrcm")
    assert predict.predict(*tries[0]).partition(": ")[2] != said[0]
    for seed in (-1, 2**64):
        with refused(ConfigError, "seed", str(seed)):
            asked(seed=seed)


def test_folders_have_fresh_noise_that_is_kept_until_the_pictures_change(picture: Path):
    """Drawn once: stopped and started again, the same request goes on with the same noise."""
    folder = picture.parent / "photos"
    folder.mkdir()
    picture.rename(folder / "a.png")
    request = asked(images=folder, n=200)

    def seed_of(request) -> int:
        return on_demand.header_of(request, request.source.opened(request.sample)).seed

    first = seed_of(request)
    assert first == seed_of(request) == seed_of(asked(images=folder, n=200, shard="1/2")) > 2**32
    assert seed_of(asked(images=folder, n=200, seed=7)) == 7
    assert seed_of(asked(images=folder, n=300)) != first
    Image.new("L", (4, 4)).save(folder / "b.png")
    assert seed_of(request) != first
    printed = on_demand.certify(request, Project())
    assert f"--seed {seed_of(request)}" in printed


def test_an_answer_says_by_which_rule_its_draws_ended(picture: Path):
    """Two rules give one picture two radii; both commands take both."""
    for options, rule in (
        ({"stop": "none"}, "none: all 1,000 draws of every image"),
        (
            {"stop": "anytime"},
            "anytime: until 1,000 draws would add less than 0.05 to a radius (0.1 sigma)",
        ),
        ({"stop": None, "radii": "0,0.3"}, "spending: until the radii 0, 0.3 are decided"),
    ):
        assert f"stopping rule {rule}" in predict.predict(asked(**options), str(picture))


def test_radii_that_are_asked_for_are_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By the default rule, unless another is named."""
    monkeypatch.chdir(tmp_path)  # where there is no params.yaml
    given = {"onnx": "net.onnx", "sigma": SIGMA, "radii": "0.3,0.1"}

    wanted = Project().request(Options(**given))
    assert (wanted.sample.stop, wanted.sample.stopping["radii"]) == ("spending", [0.1, 0.3])
    assert wanted.report.radii == [0.1, 0.3]
    assert Project().request(Options(**given, stop="none")).sample.stop == "none"
    assert Project().request(Options(**given, stop="anytime")).sample.stop == "anytime"
