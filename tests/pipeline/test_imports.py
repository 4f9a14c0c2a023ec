"""``rrcm import``: a checkpoint becomes a run like any other, and nothing else changes."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from openai_unets import GUIDED, IMPROVED, drawn
from release_checkpoints import CLASSES, HEADS, encoder, tuned
from workspace import ROOT, Workspace, tracked

from pipeline.project import import_denoiser, imports
from pipeline.project.imports import Options
from rrcm.config import params
from rrcm.config.sections import Model
from rrcm.core import schema
from rrcm.core.errors import CheckpointError, ConfigError
from rrcm.models.trained import denoiser
from rrcm.models.trained.base import checkpoint, classifier

SIGMA = 0.5


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A checkout without code, its params.yaml about images of 12 pixels, and two checkpoints."""
    text = (ROOT / "tests/mini.yaml").read_text().replace("size: 8, channels", "size: 12, channels")
    (tmp_path / "params.yaml").write_text(text)
    (tmp_path / ".gitignore").write_text((ROOT / ".gitignore").read_text())
    torch.save(tuned(), tmp_path / "best.pt")
    torch.save(encoder(), tmp_path / "nnet.pth")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bring(file, **changes):
    asked = {"classes": CLASSES, "sigma": SIGMA, "name": "mine", "heads": HEADS}
    return imports.import_checkpoint(Path(file), Options(**asked | changes))


@pytest.fixture
def dvc(folder):
    for command in (["git", "init", "--quiet"], [sys.executable, "-m", "dvc", "init", "--quiet"]):
        subprocess.run(command, cwd=folder, check=True)


@pytest.mark.usefixtures("dvc")
def test_a_classifier_becomes_a_run(folder):
    """Whole on disk, kept by DVC, a run of no epochs, and params.yaml only longer."""
    before = (folder / "params.yaml").read_text().splitlines()

    said = bring("best.pt", skip_norm=True)

    assert "dvc repro certify@mine-e050" in said
    after = (folder / "params.yaml").read_text().splitlines()
    added = [*after]
    for line in before:
        added.remove(line)
    assert len(added) == len(after) - len(before) and "  mine:" in added
    whole = params.load()
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

    bring("best.pt", skip_norm=True, name="again")  # shares the recipe
    with pytest.raises(ConfigError, match=r"imported/mine: exists already; import under another"):
        bring("best.pt", skip_norm=True)

    assert params.load().runs["again"].recipe == run.recipe


@pytest.mark.usefixtures("dvc")
def test_an_encoder_is_kept_and_its_run_is_shown(folder):
    before = (folder / "params.yaml").read_bytes()

    said = bring("nnet.pth")

    assert (folder / "params.yaml").read_bytes() == before
    shown = schema.read_yaml(_written(folder / "shown.yaml", said.partition("\n\n")[2]))
    assert shown["runs"]["mine"]["start"] == "imported/mine"
    assert shown["models"]["mine"]["size"] == "48x2x4"
    tensors, _ = checkpoint.load(Path("imported/mine/encoder.safetensors"))
    assert tensors.keys() == {n for n in encoder() if not n.startswith("projection_head")}


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

    ours = ("--arch", "tiny", "--classes", "10", "--sigma", "0.50", "--name", "theirs")
    checkout.run("rrcm", "import", "best.pt", *ours)
    ran = checkout.repro("certify@theirs-e050")

    stages = {"train@theirs", "export@theirs", "sample@theirs-e050", "certify@theirs-e050"}
    assert ran == stages
    kept, _ = checkpoint.load(checkout.path / "models/theirs/model.safetensors")
    assert all(torch.equal(tensor, kept[name]) for name, tensor in network.state_dict().items())
    table = pd.read_csv(checkout.path / "certificates/theirs-e050.csv")
    assert len(table) == 20
    assert "theirs" in checkout.run("rrcm", "certify", "--model", "theirs", "--sigma", "0.5")


def _written(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("file", "changes", "kind", "message"),
    [
        ("best.pt", {"classes": 10}, ConfigError, "--classes: best.pt knows 5 classes, not 10"),
        ("best.pt", {"image_size": 32}, ConfigError, "best.pt is for images of 12 pixels, not 32"),
        ("best.pt", {"name": "s0.5"}, ConfigError, "--name: a name is a letter and up to 99"),
        ("best.pt", {"name": "../x"}, ConfigError, "--name: a name is a letter"),
        ("best.pt", {"name": "tiny"}, ConfigError, "models.tiny exists already; import under"),
        ("best.pt", {"heads": 0}, CheckpointError, "size: no '48x2x0'"),
        ("best.pt", {"sigma": 0.0}, ConfigError, "--sigma: must be positive, got 0.0"),
        ("best.pt", {"heads": None}, CheckpointError, "give --heads or --arch"),
        ("best.pt", {"arch": "bb"}, CheckpointError, "--arch: no 'bb', only tiny, s, b, b_deep"),
        ("gone.pt", {}, CheckpointError, "gone.pt: not found"),
    ],
)
def test_what_is_refused_leaves_nothing_behind(folder, file, changes, kind, message):
    before = (folder / "params.yaml").read_bytes()

    with pytest.raises(kind) as error:
        bring(file, **changes)

    assert message in str(error.value) and "\n" not in str(error.value)
    assert (folder / "params.yaml").read_bytes() == before
    assert not (folder / "imported").exists()


def test_images_of_another_size_need_another_preset(folder):
    text = (folder / "params.yaml").read_text()
    (folder / "params.yaml").write_text(text.replace("size: 12, channels", "size: 8, channels"))

    with pytest.raises(ConfigError, match=r"data\.size: 8 in params\.yaml, but best\.pt is for"):
        bring("best.pt")


@pytest.mark.parametrize("where", ["track", "atomic"])
def test_an_import_that_fails_halfway_leaves_nothing(folder, monkeypatch, where):
    def track(folder):
        folder.with_suffix(".dvc").touch()
        if where == "track":
            raise KeyboardInterrupt

    def atomic(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(imports.graph, "track", track)
    if where == "atomic":
        monkeypatch.setattr(imports, "atomic", atomic)
    with pytest.raises(KeyboardInterrupt):
        bring("best.pt")

    assert [*(folder / "imported").iterdir()] == []
    assert "mine" not in (folder / "params.yaml").read_text()


def test_a_params_file_in_another_style_is_left_alone(folder):
    text = (folder / "params.yaml").read_text()
    flow = text.replace("evals:\n", "evals: {\n").replace("export:", "}\nexport:")
    flow = flow.replace("}\n  tiny-gaussian-s050-e050", "},\n  tiny-gaussian-s050-e050")
    (folder / "params.yaml").write_text(flow)

    with pytest.raises(ConfigError, match="an entry cannot be added to it as it is written"):
        bring("best.pt")
    assert (folder / "params.yaml").read_text() == flow


def test_every_preset_takes_an_import(folder):
    """Inserted into the text, then read back: each section of each preset is written so."""
    found = imports.rrcm_release.read(Path("best.pt"), arch=None, heads=HEADS, final_norm=True)
    for preset in tracked("presets/*.yaml"):
        (folder / "params.yaml").write_text(preset.read_text())
        edited = imports._edited(imports._entries("mine", found, sigma=0.25))
        (folder / "imported/mine").mkdir(parents=True, exist_ok=True)

        whole = params.load(_written(folder / "edited.yaml", edited))

        assert whole.runs["mine"].loss == {"lbd": 10.0, "eta": 0.5, "m": 2, "measure": "kl"}


def bring_denoiser(file, **changes):
    asked = {"name": "mine", "schedule": "cosine:4000", "rescale": True, "image_size": 8}
    asked |= {"denoiser": True, "head_channels": 16}
    return import_denoiser.import_denoiser(Path(file), Options(**asked | changes))


def test_a_denoiser_is_kept_and_lines_that_use_it_are_shown(folder, monkeypatch):
    """params.yaml, which stays as it was, loads with them."""
    tracked = []
    monkeypatch.setattr(imports.graph, "track", tracked.append)
    before = (folder / "params.yaml").read_text()
    torch.save(drawn(IMPROVED), folder / "ema.pt")

    said = bring_denoiser("ema.pt")

    assert (folder / "params.yaml").read_text() == before
    assert tracked == [Path("imported/mine")] == [*Path("imported").iterdir()]
    network, config = denoiser.load(Path("imported/mine"))
    assert config["schedule"] == {"kind": "cosine", "steps": 4000, "rescale": True}
    assert torch.equal(
        network.network.unet.conv_in.weight, drawn(IMPROVED)["input_blocks.0.0.weight"]
    )
    shown = schema.read_yaml(_written(folder / "shown.yaml", said.partition("\n\n")[2]))
    assert {*shown} == {"purified", "evals"}
    more = schema.read_yaml(folder / "params.yaml")
    for section in shown:
        more[section] |= shown[section]
    whole = params.load(_written(folder / "more.yaml", json.dumps(more)))
    (added,) = whole.purified
    assert whole.purified[added].denoiser == "imported/mine"
    assert [e.sigma for e in whole.evals.values() if e.run == added] == [
        whole.purified[added].sigma
    ]


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"name": "256x256"}, ConfigError, "--name: a name is a letter and up to 99"),
        ({"schedule": "cosine"}, ConfigError, "--schedule: 'cosine': cosine or linear, a colon"),
        ({"schedule": "edm:0"}, ConfigError, "--schedule: 'edm:0': cosine or linear, a colon"),
        ({"schedule": "linear:1"}, ConfigError, "--schedule: 'linear:1': steps: must be above 1"),
        ({"image_size": 0}, CheckpointError, "image_size: must be positive, got 0"),
        ({"heads": 4}, ConfigError, "give one of both"),
        ({"head_channels": 5}, CheckpointError, "no whole number of heads of 5"),
    ],
)
def test_a_denoiser_that_cannot_be_is_refused_before_anything_is_written(
    folder, changes, kind, message
):
    torch.save(drawn(GUIDED), folder / "model.pt")

    with pytest.raises(kind) as error:
        bring_denoiser("model.pt", **changes)

    assert message in str(error.value) and "\n" not in str(error.value)
    assert not (folder / "imported").exists()


def test_an_import_of_a_denoiser_that_fails_halfway_leaves_nothing(folder, monkeypatch):
    torch.save(drawn(GUIDED), folder / "model.pt")
    monkeypatch.setattr(import_denoiser.denoiser, "save", lambda part, **_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bring_denoiser("model.pt")
    monkeypatch.undo()
    monkeypatch.setattr(imports.graph, "track", lambda out: 1 / 0)
    monkeypatch.chdir(folder)
    with pytest.raises(ZeroDivisionError):
        bring_denoiser("model.pt")

    assert [*(folder / "imported").iterdir()] == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"classes": 10}, "--sigma: needed to import a classifier"),
        ({"sigma": 0.5}, "--classes: needed to import a classifier"),
        (
            {"classes": 10, "sigma": 0.5, "head_channels": 64},
            "--head-channels: not for a classifier",
        ),
        (
            {"classes": 10, "sigma": 0.5, "rescale": True},
            "--rescale: not for a classifier; leave it",
        ),
        ({"denoiser": True, "schedule": "linear:1000"}, "--name: needed to import a denoiser"),
        ({"denoiser": True, "name": "mine"}, "--schedule: needed to import a denoiser"),
        (
            {"denoiser": True, "name": "mine", "schedule": "linear:1000"},
            "--image-size: needed to import a denoiser",
        ),
        (
            {"denoiser": True, "skip_norm": True},
            "--skip-norm: not for a denoiser; leave it out, or",
        ),
    ],
)
def test_each_kind_of_import_asks_for_its_own_options(given, message):
    with pytest.raises(ConfigError, match=message):
        imports.check_options(Options(**given))
    imports.check_options(Options(classes=10, sigma=0.5))
    imports.check_options(Options(denoiser=True, name="a", schedule="b", image_size=8))
