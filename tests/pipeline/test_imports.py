"""``rrcm import``: a checkpoint becomes a run like any other, and nothing else changes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from builders import refused
from field_checkpoints import (
    CIFAR10,
    NONE,
    OPTION_A,
    SMALL,
    cohen,
    lenet,
    lenet_scores,
    logits,
    residual_scores,
)
from openai_unets import GUIDED, IMPROVED, drawn
from release_checkpoints import CLASSES, HEADS, encoder, tuned
from ruamel.yaml import YAML
from workspace import ROOT, Workspace

from pipeline.project import imports
from rrcm.config import params
from rrcm.config.params import Params
from rrcm.config.sections import Model
from rrcm.core import schema
from rrcm.core.errors import CheckpointError, ConfigError
from rrcm.models.trained import denoiser
from rrcm.models.trained.base import checkpoint, classifier

SIGMA = 0.5


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A checkout without code, its params.yaml about images of 12 pixels, and checkpoints."""
    text = (ROOT / "tests/mini.yaml").read_text().replace("size: 8, channels", "size: 12, channels")
    (tmp_path / "params.yaml").write_text(text)
    (tmp_path / ".gitignore").write_text((ROOT / ".gitignore").read_text())
    torch.save(tuned(), tmp_path / "best.pt")
    torch.save(encoder(), tmp_path / "nnet.pth")
    torch.save(drawn(IMPROVED), tmp_path / "ema.pt")
    torch.save(drawn(GUIDED), tmp_path / "model.pt")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bring(file, **changes):
    asked = {"sigma": SIGMA, "name": "mine", "heads": HEADS, "skip_norm": False}
    return imports.import_checkpoint(Path(file), **asked | changes)


def bring_denoiser(file, **changes):
    asked = {"name": "mine", "schedule": "cosine:4000", "rescale": True, "image_size": 8}
    asked |= {"heads": None, "head_channels": 16}
    return imports.import_denoiser(Path(file), **asked | changes)


def added(said: str) -> Params:
    """params.yaml with the entries that were printed, which is valid."""
    Path("shown.yaml").write_text(said.partition("\n\n")[2])
    both = schema.read_yaml(Path("params.yaml"))
    for section, entries in schema.read_yaml(Path("shown.yaml")).items():
        assert not both[section].keys() & entries.keys()
        both[section] |= entries
    Path("both.yaml").write_text(json.dumps(both))
    return params.load(Path("both.yaml"))


@pytest.fixture
def dvc(folder):
    for command in (["git", "init", "--quiet"], [sys.executable, "-m", "dvc", "init", "--quiet"]):
        subprocess.run(command, cwd=folder, check=True)


@pytest.mark.usefixtures("dvc")
def test_a_classifier_becomes_a_run(folder):
    """Whole on disk, kept by DVC, and shown as a run of no epochs; params.yaml stays."""
    before = (folder / "params.yaml").read_bytes()

    said = bring("best.pt", skip_norm=True)

    assert said.startswith(f"imported/mine: a classifier of {CLASSES} classes. To certify it, add")
    assert (folder / "params.yaml").read_bytes() == before
    whole = added(said)
    run = whole.runs["mine"]
    assert (run.start, run.sigma, run.method) == ("imported/mine", SIGMA, "rrcm")
    recipe = whole.recipes[run.recipe]
    assert (recipe.epochs, recipe.condition, recipe.final_norm) == (0, "nearest", False)
    assert whole.evals["mine-e050"].run == "mine"
    network, described = classifier.load(Path("imported/mine"))
    assert described["final_norm"] is False and len(described["classes"]) == CLASSES
    assert described["model"]["shape"] == whole.models["mine"]
    assert torch.equal(network.head.bias, tuned()["linear_head.bias"])
    assert sorted(p.name for p in Path("imported").iterdir()) == ["mine", "mine.dvc"]
    ignored = subprocess.run(
        ["git", "status", "--short", "--untracked-files=all", "imported"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ignored.stdout == "?? imported/mine.dvc\n"
    with pytest.raises(ConfigError, match=r"imported/mine: exists already; import under another"):
        bring("best.pt", skip_norm=True)


OTHERS = {  # a file, its passes, how they are normalised, side of pictures, name by default
    "resnet": (cohen(SMALL), residual_scores, SMALL, CIFAR10, 32, "resnet-20-imported-s050"),
    "lenet": (cohen(lenet()), lenet_scores, lenet(), NONE, 28, "lenet-imported-s050"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_networks_of_other_repositories_become_runs(folder, monkeypatch, kind):
    held, forward, state, normalisation, side, name = OTHERS[kind]
    monkeypatch.setattr(imports.with_dvc, "track", lambda out: None)
    torch.save(held, "checkpoint.pth.tar")
    text = Path("params.yaml").read_text().replace("size: 12, channels", f"size: {side}, channels")
    channels = state["conv1.weight"].shape[1]
    Path("params.yaml").write_text(re.sub(r"channels: \d", f"channels: {channels}", text))

    run = added(bring("checkpoint.pth.tar", name="")).runs[name]

    network, _ = classifier.load(Path("imported", name))
    x = torch.rand(2, channels, side, side, generator=torch.Generator().manual_seed(0))
    found = network(x, torch.tensor(SIGMA)).double()
    torch.testing.assert_close(
        found, logits(forward, state, x, normalisation), atol=1e-5, rtol=1e-5
    )
    assert (run.architecture, run.method, run.start) == (kind, "gaussian", f"imported/{name}")


def test_a_network_that_would_lose_its_std_is_not_imported(folder):
    """The LeNet of this project has no normalisation."""
    held = cohen(lenet())
    held["state_dict"] |= {"0.mean": torch.zeros(1), "0.std": torch.full((1,), 0.3)}
    torch.save(held, "checkpoint.pth.tar")
    with refused(CheckpointError, "no place for the mean and std", "`rrcm certify --checkpoint`"):
        bring("checkpoint.pth.tar", name="")


def test_which_of_several_networks_is_imported_is_said(folder, monkeypatch):
    monkeypatch.setattr(imports.with_dvc, "track", lambda out: None)
    plain = cohen(SMALL)["state_dict"]
    torch.save({"state_dict": plain, "ema": plain}, "checkpoint.pth.tar")

    assert "state_dict was taken, as by timm's loader, and not ema" in bring("checkpoint.pth.tar")


def test_other_networks_are_not_runs(folder):
    torch.save(cohen(OPTION_A), "checkpoint.pth.tar")

    with refused(CheckpointError, "size: no '20 with shortcuts of zeros on", "--checkpoint"):
        bring("checkpoint.pth.tar")
    assert not Path("imported").exists()


def test_an_encoder_is_kept_and_its_run_is_shown(folder, monkeypatch):
    monkeypatch.setattr(imports.with_dvc, "track", lambda out: None)

    whole = added(bring("nnet.pth"))

    assert whole.runs["mine"].start == "imported/mine"
    assert whole.models["mine"]["size"] == "48x2x4"
    tensors, _ = checkpoint.load(Path("imported/mine/encoder.safetensors"))
    assert tensors.keys() == {n for n in encoder() if not n.startswith("projection_head")}


def test_a_denoiser_is_kept_and_lines_that_use_it_are_shown(folder, monkeypatch):
    tracked = []
    monkeypatch.setattr(imports.with_dvc, "track", tracked.append)

    said = bring_denoiser("ema.pt")

    assert said.startswith("imported/mine: a denoiser of images of ")
    assert tracked == [Path("imported/mine")] == [*Path("imported").iterdir()]
    network, config = denoiser.load(Path("imported/mine"))
    assert config["schedule"] == {"kind": "cosine", "steps": 4000, "rescale": True}
    assert torch.equal(
        network.network.unet.conv_in.weight, drawn(IMPROVED)["input_blocks.0.0.weight"]
    )


@pytest.mark.slow
def test_a_run_of_theirs_is_exported_and_certified_like_any_other(checkout: Workspace):
    """A wrapped classifier of the miniature's shape; what was there does not run again."""
    shape = schema.read_yaml(ROOT / "tests/mini.yaml")["models"]["tiny"]
    network = classifier.build(
        Model(architecture="vit", shape=shape), classes=10, condition="nearest", final_norm=True
    )
    theirs = {
        name.replace("head.", "linear_head.").replace("encoder.", "base_model."): tensor
        for name, tensor in network.state_dict().items()
    }
    torch.save({f"module.{name}": t for name, t in theirs.items()}, checkout.path / "best.pt")

    ours = ("--sigma", "0.50", "--name", "theirs")
    said = checkout.run("rrcm", "import", "best.pt", *ours)
    entries = YAML(typ="safe").load(said.partition("\n\n")[2])
    checkout.edit(lambda whole: [whole[key].update(entries[key]) for key in entries])
    ran = checkout.repro("certify@theirs-e050")

    stages = {"train@theirs", "export@theirs", "sample@theirs-e050", "certify@theirs-e050"}
    assert ran == stages
    kept, _ = checkpoint.load(checkout.path / "models/theirs/model.safetensors")
    assert all(torch.equal(tensor, kept[name]) for name, tensor in network.state_dict().items())
    table = pd.read_csv(checkout.path / "certificates/theirs-e050.csv")
    assert len(table) == 20
    assert "theirs" in checkout.run("rrcm", "certify", "--model", "theirs", "--sigma", "0.5")


@pytest.mark.parametrize(
    ("file", "changes", "kind", "message"),
    [
        ("best.pt", {"name": "s0.5"}, ConfigError, "--name: a name is a letter and up to 99"),
        ("best.pt", {"heads": 0}, CheckpointError, "size: no '48x2x0'"),
        ("best.pt", {"sigma": 0.0}, ConfigError, "--sigma: must be positive, got 0.0"),
        ("best.pt", {"heads": None}, CheckpointError, "give --heads"),
        ("gone.pt", {}, CheckpointError, "gone.pt: not found"),
        ("model.pt", {"schedule": "cosine"}, ConfigError, "'cosine': cosine or linear, a colon"),
        ("model.pt", {"schedule": "linear:1"}, ConfigError, "'linear:1': steps: must be above 1"),
        ("model.pt", {"image_size": 0}, CheckpointError, "image_size: must be positive, got 0"),
        ("model.pt", {"heads": 4}, ConfigError, "give one of both"),
        ("model.pt", {"head_channels": 5}, CheckpointError, "no whole number of heads of 5"),
    ],
)
def test_what_is_refused_leaves_nothing_behind(folder, file, changes, kind, message):
    with pytest.raises(kind) as error:
        (bring_denoiser if file == "model.pt" else bring)(file, **changes)

    assert message in str(error.value) and "\n" not in str(error.value)
    assert not (folder / "imported").exists()


@pytest.mark.parametrize("where", ["write", "track"])
def test_an_import_that_fails_halfway_leaves_nothing(folder, monkeypatch, where):
    def track(folder):
        folder.with_suffix(".dvc").touch()
        raise KeyboardInterrupt

    def save(part, **_):
        part.mkdir()
        track(part / "network")

    monkeypatch.setattr(imports.with_dvc, "track", track)
    if where == "write":
        monkeypatch.setattr(imports.denoiser, "save", save)
    with pytest.raises(KeyboardInterrupt):
        bring_denoiser("model.pt")

    assert [*(folder / "imported").iterdir()] == []
