"""`rrcm certify` and `predict` on networks of timm that others exported, and on folders."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import timm
import torch
from builders import export_elsewhere, printed, refusal
from PIL import Image
from workspace import Workspace

from rrcm.analysis import entries
from rrcm.auditing.audit import audit
from rrcm.certification import certify
from rrcm.certification.attacking.search import Search
from rrcm.certification.votes import records
from rrcm.cli.commands import attack, on_demand, tables
from rrcm.cli.options import Options
from rrcm.cli.project import Project

pytestmark = pytest.mark.usefixtures("unforked")
SIDE, CLASSES = 32, ["ant", "bee", "cat"]
RNG = np.random.default_rng(0)
MODES = {  # file -> a picture; all that cameras and scanners make
    "ant/colours.jpg": lambda: RNG.integers(0, 256, (40, 60, 3), dtype=np.uint8),
    "ant/grey.png": lambda: RNG.integers(0, 256, (33, 90), dtype=np.uint8),
    "bee/transparent.png": lambda: RNG.integers(0, 256, (64, 64, 4), dtype=np.uint8),
    "bee/sixteen.png": lambda: RNG.integers(0, 65536, (50, 41), dtype=np.uint16),
    "cat/small.png": lambda: RNG.integers(0, 256, (9, 7, 3), dtype=np.uint8),
    "cat/large.jpg": lambda: RNG.integers(0, 256, (400, 300, 3), dtype=np.uint8),
}
CORRUPT = "bee/corrupt.png"
SETTINGS = ("--sigma", "0.25", "--n", "40", "--alpha", "0.01")


def networks() -> dict[str, torch.nn.Module]:
    torch.manual_seed(0)
    return {
        "resnet": timm.create_model("resnet10t", num_classes=3),
        "vit": timm.create_model("vit_tiny_patch16_224", img_size=SIDE, num_classes=3),
    }


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory) -> Workspace:
    """A folder outside any checkout, with networks of random weights and pictures."""
    root = tmp_path_factory.mktemp("some where")
    x = torch.rand(2, 3, SIDE, SIDE)
    for name, network in networks().items():
        export_elsewhere(network, x, root / f"{name}.onnx", fixed=False)
        torch.save({"state_dict": network.state_dict()}, root / f"{name}.pt")
    export_elsewhere(networks()["vit"], x, root / "vit-fixed.onnx", fixed=True)
    for name, pixels in MODES.items():
        (root / "pictures" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels()).save(root / "pictures" / name)
    whole = (root / "pictures/bee/transparent.png").read_bytes()
    (root / "pictures" / CORRUPT).write_bytes(whole[: len(whole) // 2])
    (root / "two.txt").write_text("an ant\n\na bee\n")
    (root / "flat").mkdir()
    shutil.copy(root / "pictures/ant/grey.png", root / "flat")
    return Workspace(root)


def table(elsewhere: Workspace, name: str) -> pd.DataFrame:
    (path,) = elsewhere.path.glob(f"results/{name}-e0.25-*.csv")
    return certify.read(path)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("resnet10t", ("--timm", "resnet10t", "--weights", "resnet.pt", "--size", "32")),
        ("vit-fixed", ("--onnx", "vit-fixed.onnx")),
    ],
)
def test_a_folder_of_mixed_pictures_is_certified(elsewhere: Workspace, name: str, source):
    command = ("certify", *source, "--images", "pictures", *SETTINGS)
    said = printed(elsewhere.path, *command, "--mean", ".485,.456,.406", "--std", ".229,.224,.225")

    found = table(elsewhere, f"{name}-pictures")
    files = sorted([*MODES, CORRUPT])
    assert found["file"].tolist() == [file for file in files if file != CORRUPT]
    assert found["idx"].tolist() == [i for i, file in enumerate(files) if file != CORRUPT]
    assert [CLASSES[label] for label in found["label"]] == [
        f.partition("/")[0] for f in found["file"]
    ]
    assert "6 images, n0 = 100, n = 40" in said and "certified accuracy" in said
    assert f"left out: {CORRUPT}: a damaged picture" in said
    assert "inside the function: mean 0.485,0.456,0.406, std 0.229,0.224,0.225" in said
    right = int((found["clean"] == found["label"]).sum())
    assert f"{right} of 6 right without noise" in said and "noisy images/s" in said
    assert f" {certify.printed(right / 6, certify.DOWN, places=1, scale=100)} [" in said
    (page,) = elsewhere.path.glob(f"results/{name}-pictures-*.html")
    assert f"pictures: {page.relative_to(elsewhere.path)}\n" in said
    assert all(f'"name":"{file}"' in page.read_text() for file in MODES)
    (path,) = elsewhere.path.glob(f"results/{name}-pictures-*-left-out.txt")
    assert CORRUPT in path.read_text()


def test_pictures_without_labels_have_answers(elsewhere: Workspace):
    (elsewhere.path / "names.txt").write_text("\n".join(CLASSES))
    source = ("--onnx", "vit.onnx", *SETTINGS, "--classes", "names.txt")
    drawn = ("--resize", "squash", "--stop", "anytime", "--seed", "3")
    said = printed(elsewhere.path, "certify", *source, "--images", "flat", *drawn)
    one = printed(elsewhere.path, "predict", *source, "--image", "flat/grey.png", *drawn)

    (row,) = table(elsewhere, "vit-flat").itertuples()
    assert "no labels" in said and "keep their answer under noise" in said
    assert (row.label, row.correct) == (-1, 0)
    answer = "abstain" if row.predict == -1 else f"class {CLASSES[row.predict]}, certified"
    assert f"flat/grey.png: {answer}" in one and f"{row.n_A} of {row.n} noisy draws" in one


@pytest.fixture
def labelled(elsewhere: Workspace, tmp_path, monkeypatch):
    """Certifies six pictures with labels in a file, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    for number, pixels in enumerate(MODES.values()):
        Path("six").mkdir(exist_ok=True)
        Image.fromarray(pixels()).save(f"six/{number}.png")
    Path("names.txt").write_text("\n".join(CLASSES))

    def certified(*, n: int, alpha: float, stop: str, first: str = "ant", **more) -> str:
        labels = [first, *("bee" for _ in range(5))]
        lines = [f"{number}.png,{label}" for number, label in enumerate(labels)]
        Path("labels.csv").write_text("\n".join(["file,label", *lines]) + "\n")
        options = Options(
            onnx=str(elsewhere.path / "resnet.onnx"), sigma=0.25, images=Path("six"),
            labels=Path("labels.csv"), classes=Path("names.txt"), n=n, alpha=alpha, stop=stop,
            **more,
        )  # fmt: skip
        return on_demand.certify(Project().request(options), Project())

    return certified


def test_votes_serve_other_labels_and_every_alpha_without_a_rule(labelled, capsys):
    """They are of the same noise, which nobody has asked to be new, and are not drawn again."""
    asked = {"n": 40, "stop": "none"}
    labelled(alpha=0.05, **asked)
    assert "have votes already" not in capsys.readouterr().err

    corrected = labelled(alpha=0.05, first="cat", **asked)
    assert "6 of 6 images have votes already" in capsys.readouterr().err
    stricter = labelled(alpha=0.01, first="cat", **asked)
    assert "6 of 6 images have votes already" in capsys.readouterr().err

    assert "repeated" not in corrected + stricter and "subset" not in corrected
    few = labelled(alpha=0.05, subset="every:3", **asked)
    assert "subset: every:3 takes 2 of 6 images; --subset all takes all" in few
    path = Path(stricter.splitlines()[-1].removeprefix("votes: "))
    header, rows = records.read(path)
    assert (header.alpha, rows[0].label) == (0.01, 2)
    assert audit(path, alpha=0.01).trusted
    plain, laxer = tables.read(path), tables.read(path, alpha=0.05)
    assert "votes" not in entries.label(plain, [plain])
    assert "(α = 0.05, votes 0.01)" in entries.label(laxer, [laxer])


def test_a_repetition_says_which_alpha_would_have_kept_the_guarantee(labelled):
    """Whoever draws until an image is certified has made a test each time."""
    asked = {"alpha": 0.01, "stop": "none"}
    first = labelled(n=40, **asked)
    again = labelled(n=40, first="cat", **asked)  # another label is the same table
    more = labelled(n=50, **asked)
    other = labelled(n=40, stop="anytime", alpha=0.01, seed=3)

    assert "repeated" not in first + again
    assert "2 tables of these images, n = 40 and n0 = 100 (none), n = 50" in more
    assert "only if each was certified at --alpha 0.005 or less" in more
    assert "3 tables of these images" in other and "--alpha 0.00333 or less" in other


def test_an_attack_says_what_was_done_with_the_images_before(
    elsewhere: Workspace, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    asked = {"timm": "resnet10t", "weights": elsewhere.path / "resnet.pt", "size": "32"}
    asked |= {"images": elsewhere.path / "pictures", "sigma": 0.25, "alpha": 0.01}
    asked |= {"radii": "0", "subset": "every:3"}

    def attacked(n: int, steps: int = 1) -> str:
        search = Search(copies=1, steps=steps, restarts=1)
        return attack.attack(Project().request(Options(**asked, n=n)), Project(), search)

    first, longer, more = attacked(40), attacked(40, steps=2), attacked(50)

    assert "repeated" not in first and "tables of these images" not in longer
    assert " clean " in first and len([*tmp_path.glob(".rrcm/clean/*")]) == 1  # of one pass
    two = "repeated: 2 attacks on these images (n = 40, 1 copies, 1 steps, 1 restarts; n = 40, 1 "
    assert two in longer and "only if each was made at --alpha 0.005 or less" in longer
    assert attacked(40).count("repeated: 3 attacks") == more.count("repeated: 3 attacks") == 1
    assert len([*tmp_path.glob("results/*-attack-*.csv")]) == 3  # a search has a file of its own
    assert "repeated: 2 tables of these images" in more and "--alpha 0.005 or less" in more


def test_the_checks_before_the_draws_are_part_of_a_budget(elsewhere: Workspace):
    command = ("certify", "--onnx", "vit.onnx", "--images", "flat", *SETTINGS)
    said = refusal(elsewhere.path, "rrcm", *command, "--budget", "0.001s")

    assert "error: budget: the 0.001 s were over before the first draw" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--timm", "vit.pt", "--images", "flat"), "vit.pt: a file, not the name of a timm"),
        (("--onnx", "vit.onnx", "--images", "no"), "--images no: no such folder"),
        (("--onnx", "vit.onnx", "--images", "s3://a/b"), "--images s3://a/b: an address, not a"),
        (
            ("--onnx", "vit.onnx", "--images", "flat/grey.png"),
            "`rrcm predict --image flat/grey.png",
        ),
        (("--onnx", "vit.onnx", "--images", "vit.pt"), "--images vit.pt: a file of PyTorch"),
        (
            ("--onnx", "vit.onnx", "--images", "flat", "--classes", "two.txt"),
            "--classes two.txt: 2 ('an ant' … 'a bee') were given for the 3 outputs of the model",
        ),
        (("--onnx", "vit.pt", "--images", "flat"), "vit.pt: a file of PyTorch, not ONNX: --che"),
        (("--onnx", "vit.onnx", "--images", "flat", "--n", "3"), "3 votes can never certify"),
        (("--onnx", "vit.onnx", "--images", "flat", "--page", "a.png"), "--page: a name that ends"),
    ],
)
def test_what_is_wrong_takes_one_line(elsewhere: Workspace, options, words):
    said = refusal(elsewhere.path, "rrcm", "certify", *SETTINGS, *options)

    assert said.startswith("error: ") and words in said and len(said.splitlines()) == 1
