"""A smoothed classifier as an object gives the answers of its table, and of nothing else."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import export_elsewhere, images, linear, refused
from PIL import Image

from rrcm.certification import openers
from rrcm.certification.certify import certify as table_of
from rrcm.certification.sampling import drawing, store
from rrcm.certification.smoothed import Smoothed
from rrcm.certification.votes import records
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.config import defaults
from rrcm.core import registry
from rrcm.core.errors import BackendError, CertificateError, ConfigError, DataError
from rrcm.data import given

SPLIT = images(8, max_value=255)
DRAWS = dataclasses.replace(defaults.DRAWS, n0=20, n=400, batch_size=8)
SHAPE = (1, 2, 2)


def of(**changes) -> Smoothed:
    return Smoothed(linear(), **{"shape": SHAPE, "draws": DRAWS} | changes)


@pytest.mark.parametrize(("stop", "certificate"), [("spending", "cohen"), ("grid", "two_class")])
def test_an_answer_is_the_row_of_a_table(tmp_path: Path, stop: str, certificate: str):
    """Of the same seed and image, for any certificate and alpha, whatever subset is set."""
    draws = dataclasses.replace(DRAWS, stop=stop, seed=5, certificate=certificate, alpha=0.01)
    header = store.header(linear(), SPLIT, "a-run", draws)
    journal, path = tmp_path / "journal", tmp_path / "votes.jsonl"
    drawing.run(linear(), header, SPLIT, journal=journal, path=path, title="")
    table = table_of(*records.read(path), certificates=[certificate], alpha=0.01)
    one = of(draws=dataclasses.replace(draws, subset="first:1"))

    for place, row in enumerate(table.itertuples()):
        got = one.answer(SPLIT.images[place], idx=row.idx, seed=5)

        assert (got.label, got.radius, got.p_A) == (row.predict, row.radius, row.p_A)
        assert (got.n_A, got.n, got.stop, got.alpha) == (row.n_A, row.n, row.stop, 0.01)
        assert got.draws == got.n + 20 and got.seed == 5
        assert got.name == ("" if got.label == ABSTAIN else str(got.label))
    assert (table["predict"] != ABSTAIN).any()


def test_an_index_that_the_noise_does_not_know_is_refused():
    """Its counter has 32 bits: beyond, an image would have the noise of another one."""
    for idx in (-1, 2**32):
        with refused(ConfigError, "idx: must be in [0, 2^32)", str(idx)):
            of().answer(SPLIT.images[0], idx=idx)
    assert of().answer(SPLIT.images[0], idx=2**32 - 1).idx == 2**32 - 1


def test_white_is_one_to_the_classifier():
    """Pixels of 0..16 with max_value = 16 are those of 0..240 with max_value = 240."""
    pixels = SPLIT.images[0] // 16

    small, large = (
        of(max_value=16).answer(pixels, seed=1),
        of(max_value=240).answer(pixels * 15, seed=1),
    )

    assert small == large


def test_pixels_of_another_shape_are_refused():
    for image in (np.zeros((1, 2, 3)), np.zeros((3, 2, 2), np.uint8)):
        with refused(DataError, "image 0: its shape is", ", not (1, 2, 2)"):
            of().answer(image)


def test_what_can_certify_nothing_is_refused_before_it_is_drawn():
    few = of(draws=dataclasses.replace(DRAWS, n=9))

    with refused(CertificateError, "9 votes can never certify at alpha = 0.001"):
        few.answer(SPLIT.images[0])
    assert few.backend.batches == []
    with refused(ConfigError, "sigma: must be positive, got 0"):
        Smoothed(linear(sigma=0.0), shape=SHAPE)
    none = of(draws=dataclasses.replace(DRAWS, stop="none"))
    with refused(ConfigError, "rule 'none' certifies nothing before its end"):
        none.answer(SPLIT.images[0], budget=1.0)
    rules = ", ".join(registry.names("stopping"))
    with refused(ConfigError, f"stop: one of the rules {rules}, got 'nome'"):
        of().certify(SPLIT.images, stop="nome")
    with refused(ConfigError, "radii: the rules ", " decide them, not 'anytime'"):
        of().certify(SPLIT.images, stop="anytime", radii=[0.1])


# Openers.


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """A network of grey 4 x 4 pictures, whose class is how bright they are, by torch's exporter."""
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    layer = torch.nn.Linear(16, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.stack([-torch.ones(16), torch.ones(16)]))
        layer.bias.copy_(torch.tensor([8.0, -8.0]))
    network = torch.nn.Sequential(torch.nn.Flatten(), layer)
    export_elsewhere(network, torch.zeros(16, 1, 4, 4), path, fixed=True)
    return path


def test_three_lines_certify_anybodys_classifier(file: Path, tmp_path: Path):
    """Brightness is Gaussian: above 1/2 with ndtr(4 (mean - 1/2) / sigma); R = 4 (mean - 1/2)."""
    Image.new("L", (9, 6), 204).save(tmp_path / "picture.png")  # 0.8
    draws = dataclasses.replace(DRAWS, n=4_000, batch_size=16, stop="none")

    classifier = openers.smooth(file, sigma=0.5, classes=["dark", "bright"])
    assert classifier.draws.batch_size == 16  # the file's own
    classifier = dataclasses.replace(classifier, draws=draws)
    answer = classifier.answer(tmp_path / "picture.png", seed=0)

    assert answer.name == "bright"
    assert 0.9 * 4 * 0.3 < answer.radius <= 4 * 0.3
    assert openers.smooth(file, sigma=0.5).backend.classes == ["0", "1"]
    assert openers.smooth(file, sigma=0.5, classes=["crane", "crane"])  # as ImageNet has
    with refused(BackendError, "devices: only a network in memory"):
        classifier.certify(tmp_path / "picture.png", devices=["cpu"], progress=False)


def test_mistakes_are_found_when_a_file_is_opened(file: Path, tmp_path: Path):
    with refused(BackendError, "classes: 3 ('a' … 'c') were given for the 2 outputs"):
        openers.smooth(file, sigma=0.5, classes=["a", "b", "c"])
    with refused(ConfigError, "sigma: 60 looks like units of 0..255", "that is sigma 0.235"):
        openers.smooth(file, sigma=60.0)
    with refused(ConfigError, "sigma: must be at least 0.0001, as radii of less round to 0"):
        openers.smooth(file, sigma=1e-9)
    with refused(ConfigError, "resize: 'crob' is none of exact, crop, squash"):
        openers.smooth(file, sigma=0.5, resize="crob")


def test_a_picture_of_the_networks_size_is_left_as_it_is(file: Path):
    """Whatever opens the network; a picture of another size is scaled to it."""
    network = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(1280, 2)
    ).eval()  # not tiny: there a crop is none
    for opened in (
        openers.smooth(file, sigma=0.5),
        openers.smooth(network, sigma=0.5, classes=2, shape=(1, 32, 40)),
    ):
        _, height, width = opened.shape
        pixels = np.random.default_rng(0).integers(0, 256, (height, width), dtype=np.uint8)
        picture = Image.fromarray(pixels)
        same, larger = (
            given.collect([p], classes=["0", "1"], fit=opened.fit).images[0, 0]
            for p in (picture, picture.resize((2 * width, 2 * height), Image.Resampling.NEAREST))
        )

        assert same.tolist() == pixels.tolist() != larger.tolist()
        assert "those of this size as they are" in str(opened.fit)
