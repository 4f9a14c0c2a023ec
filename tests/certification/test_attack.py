"""An attack bounds robust accuracy from above: on a half-space the truth is known."""

import dataclasses
import json
import math
from pathlib import Path

import builders
import numpy as np
import pytest
import torch
from builders import MODEL, SIGMA, export_elsewhere, linear, opened, refused, save_classifier
from torch import nn

import rrcm
from rrcm.analysis import attacked, report
from rrcm.analysis.entries import from_votes
from rrcm.certification import certify
from rrcm.certification.answers import Answers
from rrcm.certification.attacking import search
from rrcm.certification.smoothed import Smoothed
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.core.errors import BackendError, ConfigError, DataError, VotesError

pytestmark = pytest.mark.usefixtures("unforked")
QUICK = {"copies": 4, "steps": 4, "restarts": 2}
MARGINS = np.array([0.0, 0.08, 0.17, 0.26, -0.2])  # signed distances to the boundary
RADII = [0.0, 0.1, 0.2, 0.3]  # between them are steps of 0.025
NORMAL = torch.tensor([3.0, 0.0, -1.0, 2.0])


def half_space() -> nn.Module:
    """Class 1 on one side of a plane: smoothing changes neither the plane nor the distance."""
    layer = nn.Linear(4, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.stack([-NORMAL, NORMAL]))
        layer.bias.copy_(0.5 * NORMAL.sum() * torch.tensor([1.0, -1.0]))
    return nn.Sequential(nn.Flatten(), layer).eval()


def pictures() -> torch.Tensor:
    shifts = torch.tensor(MARGINS)[:, None] * (NORMAL / NORMAL.norm())
    return (0.5 + shifts).float().reshape(-1, 1, 2, 2)


@pytest.fixture(scope="module")
def smoothed():
    return rrcm.smooth(half_space(), sigma=0.25, classes=2)


@pytest.fixture(scope="module")
def answers(smoothed):
    labels = [1] * len(MARGINS)
    return smoothed.certify(
        pictures(), labels=labels, radii=RADII, n=4_000, seed=3, batch_size=500, progress=False
    )


def attacks(smoothed, answers, **more) -> Answers:
    how = {"answers": answers, "radii": RADII, "progress": False} | QUICK | more
    return smoothed.attack(pictures(), labels=[1] * len(MARGINS), **how)


@pytest.fixture(scope="module")
def found(smoothed, answers) -> Answers:
    return attacks(smoothed, answers)


def test_an_attack_succeeds_just_beyond_the_radius_and_never_within(found: Answers):
    distances = np.array(found.attacked["attacked"])

    assert (distances[:4] > MARGINS[:4]).all()
    assert (distances[:4] <= MARGINS[:4] + 0.05).all()
    assert found.attacked["attacked_to"] == [0] * 5
    assert distances[4] == 0  # misclassified as it is


def test_a_program_of_one_batch_size_is_attacked():
    program = torch.export.export(half_space(), (torch.zeros(16, 1, 2, 2),))
    smoothed = rrcm.smooth(program, sigma=0.25, classes=2)

    answers = smoothed.certify(pictures(), radii=RADII, n=4_000, seed=3, progress=False)

    distances = attacks(smoothed, answers).attacked["attacked"]
    np.testing.assert_allclose(distances[:4], MARGINS[:4] + 0.025, atol=0.0251)


def test_an_abstention_is_no_success(smoothed, answers):
    """The picture on the boundary itself has no class."""
    found = attacks(smoothed, answers, radii=[0.0]).attacked

    assert found["attacked"] == [math.nan] * 4 + [0]
    assert found["attacked_to"] == [ABSTAIN] * 4 + [0]


def test_success_is_judged_by_noise_of_its_own(smoothed, answers, monkeypatch):
    seeds, judged = set(), []
    answer = Smoothed.answer

    def spied(self, image, *, idx, seed):
        seeds.add(seed)
        judged.append((idx, float(np.linalg.norm(image - pictures()[idx].numpy()))))
        assert (self.draws.alpha, self.draws.n) == (answers.header.alpha, answers.header.n)
        assert self.draws.stopping["radii"] == [0.0]
        return answer(self, image, idx=idx, seed=seed)

    monkeypatch.setattr(Smoothed, "answer", spied)
    distances = attacks(smoothed, answers).attacked["attacked"]

    assert len(seeds) == 1 and seeds != {answers.header.seed}
    for place, distance in enumerate(distances[:4]):  # from far to near, until one fails
        lengths = [length for idx, length in judged if idx == place]
        assert lengths == sorted(lengths, reverse=True)
        assert lengths[0] == pytest.approx(0.3, abs=1e-4)
        assert sum(length <= distance - 1e-3 for length in lengths) == 1


def test_a_resumed_attack_is_the_uninterrupted_one(smoothed, answers, found, tmp_path: Path):
    whole, begun = tmp_path / "whole.json", tmp_path / "begun.json"
    attacks(smoothed, answers, path=whole)
    kept = json.loads(whole.read_text())
    cut = {name: kept[name][:2] for name in found.attacked}
    begun.write_text(json.dumps(kept | cut))

    resumed = attacks(smoothed, answers, path=begun)

    assert begun.read_bytes() == whole.read_bytes()
    assert resumed.attacked == found.attacked
    gone = tmp_path / "whole.json-3.npy"
    before = gone.read_bytes()
    gone.unlink()
    assert attacks(smoothed, answers, path=whole).attacked == found.attacked
    assert gone.read_bytes() == before
    with refused(VotesError, "an attack of other answers, images or settings"):
        attacks(smoothed, answers, path=whole, radii=[0.0, 0.5])


def test_both_sides_are_in_the_table_and_on_the_page(found: Answers, tmp_path: Path):
    entry = from_votes("a", found.header, found.rows)
    entry = dataclasses.replace(entry, table=found.to_pandas())
    table = attacked.table([entry], radii=RADII, confidence=0.95)
    first = {side: [text.split()[0] for text in table[side]] for side in table.columns[3:]}

    assert found.clean[1:] == [1, 1, 1, 0]  # that on the boundary is rounded to either side
    right = 100 * found.clean.count(1) / 5
    assert table["clean"].str.startswith(f"{right} [").all()
    # of MARGINS, those that the attack leaves: beyond 0, 0.1, 0.2 and 0.3
    assert first["empirical"] == ["80.0", "40.0", "20.0", "0.0"]
    assert first["certified"] == ["60.0", "40.0", "20.0", "0.0"]
    assert first["gap, points"] == ["20.0", "0.0", "0.0", "0.0"]
    rrcm.report(found, radii=RADII).save(tmp_path / "page")
    page = (tmp_path / "page/index.html").read_text()
    assert "Certified, and what an attack leaves" in page
    assert "FALSE CERTIFICATE" not in page


def test_the_curve_of_an_attack_ends_where_nothing_was_attacked(found: Answers):
    entry = from_votes("a", found.header, found.rows)
    table = found.to_pandas().assign(attacked=[np.nan, 0.1, 0.2, 0.3, 0.0])
    entry = dataclasses.replace(entry, table=table)

    figure = report.curves_figure([entry], radii=[0.0, 0.3], confidence=0.95)

    lines = figure.axes[0].get_lines()
    last = {line.get_label().split()[-1]: line.get_ydata()[-1] for line in lines}
    assert last["attacked"] == pytest.approx(20.0)
    assert last["_"] == 0  # the certified curve, whose label is at the radii that the rule decided


def test_a_success_within_a_certified_radius_is_loud_and_its_picture_kept(
    smoothed, answers, tmp_path: Path
):
    everything = {1: answers.header.n}
    rows = [
        dataclasses.replace(row, looks=[(answers.header.n, everything)], n0={1: 100})
        for row in answers.rows
    ]
    forged = type(answers)(answers.header, rows)
    assert all(answer.radius > 0.3 for answer in forged)

    got = attacks(smoothed, forged, path=tmp_path / "kept.json")
    entry = dataclasses.replace(
        from_votes("a", got.header, got.rows), table=got.to_pandas(), method="a"
    )
    lines = attacked.contradictions([entry])

    assert len(lines) == len(MARGINS)
    assert all(line.startswith("FALSE CERTIFICATE: a, image ") for line in lines)
    for idx, distance in enumerate(got.attacked["attacked"]):
        picture = np.load(tmp_path / f"kept.json-{idx}.npy")
        apart = np.linalg.norm(picture.astype(float) - pictures()[idx].numpy().astype(float))
        assert apart <= distance <= apart + 2e-6
    rrcm.report(got).save(tmp_path / "page.html")
    assert "FALSE CERTIFICATE" in (tmp_path / "page.html").read_text()


def test_what_has_no_gradients_is_refused(tmp_path: Path):
    x, labels = torch.full((1, 1, 2, 2), 0.5), [0]
    file = tmp_path / "net.onnx"
    export_elsewhere(half_space(), torch.zeros(16, 1, 2, 2), file, fixed=True)
    numbers = nn.Sequential(half_space(), Numbers()).eval()
    for classifier, more in ((file, {}), (numbers, {"classes": 2})):
        with refused(
            BackendError, "attack: this classifier has no gradients to follow, as an ONNX"
        ):
            rrcm.smooth(classifier, sigma=0.25, **more).attack(x, labels=labels)
    with refused(BackendError, "attack: this classifier has no gradients"):
        Smoothed(linear(), shape=(1, 2, 2)).attack(x, labels=labels)


def test_copies_of_a_network_have_gradients():
    network = nn.Sequential(nn.BatchNorm2d(1), half_space()).eval()
    backend = builders.foreign("module", network, sigma=0.25, channels=1, size=(2, 2))
    backend._idle.clear()  # as if other threads had them
    x = pictures().requires_grad_()
    scores = backend.scores(x)

    again = backend.function(x)

    torch.testing.assert_close(again.detach(), scores)
    assert torch.autograd.grad(again.sum(), x)[0].shape == x.shape


class Numbers(nn.Module):
    def forward(self, scores):
        return scores.argmax(1)


def test_answers_and_images_have_the_labels_of_either(smoothed, answers, found):
    """A slice of answers says which images are attacked; n, n0 and alpha are those of `certify`."""
    how = {"radii": RADII, "progress": False} | QUICK
    bare = smoothed.certify(
        pictures(), radii=RADII, n=4_000, seed=3, batch_size=500, progress=False
    )

    of_images = smoothed.attack(pictures(), labels=[1] * len(MARGINS), answers=bare, **how)
    of_answers = smoothed.attack(pictures(), answers=answers, **how)
    some = smoothed.attack(pictures(), labels=[1] * len(MARGINS), answers=bare[1:3], **how)
    own = smoothed.attack(pictures()[:1], labels=[1], n=200, n0=50, alpha=0.01, **how)

    assert of_images.attacked == of_answers.attacked == found.attacked
    assert of_images.header == found.header and of_images.rows == found.rows
    assert some.attacked == {name: column[1:3] for name, column in found.attacked.items()}
    assert (own.header.n, own.header.n0, own.header.alpha) == (200, 50, 0.01)
    with refused(ConfigError, "n: the answers have theirs"):
        smoothed.attack(pictures(), answers=answers, n=200)
    with refused(DataError, "other images or labels; give all images of the slice's answers"):
        smoothed.attack(pictures()[:2], answers=answers[:2])


def test_unknown_labels_and_answers_of_something_else_are_refused(smoothed, answers, found):
    with refused(DataError, "labels: image 0 has none, which an attack needs"):
        smoothed.attack(pictures())
    with refused(DataError, "attack: the answers are of other images or labels"):
        smoothed.attack(pictures(), labels=[0] * len(MARGINS), answers=answers)
    with refused(DataError, "attack: the answers are of another sigma"):
        attacks(rrcm.smooth(half_space(), sigma=0.5, classes=2), answers)
    with refused(DataError, "attack: the answers are of another classifier"):
        turned = nn.Sequential(half_space(), nn.Linear(2, 2)).eval()
        attacks(rrcm.smooth(turned, sigma=0.25, classes=2), answers)
    with refused(DataError, "classifier: attacked with other labels"):
        rrcm.report(found, labels=[-1] * 5)
    for radii in ([-1], [], [math.nan]):
        with refused(ConfigError, "radii: one or more, each of 0 or more pixels"):
            smoothed.attack(pictures(), answers=answers, radii=radii)


def test_an_attack_without_a_success_is_shown_and_its_table_read(smoothed, tmp_path: Path):
    how = {"labels": [1, 1], "radii": [0.0], "progress": False} | QUICK
    got = smoothed.attack(pictures()[2:4], **how)
    entry = from_votes("a", got.header, got.rows)
    certify.write(got.to_pandas(), tmp_path / "a.csv")

    for table in (got.to_pandas(), certify.read(tmp_path / "a.csv")):
        one = dataclasses.replace(entry, table=table)
        shown = attacked.table([one], radii=[0.5], confidence=0.95)
        assert table["attacked"].isna().all() and attacked.contradictions([one]) == []
        assert shown["empirical"][0].startswith("100.0")
        report.write([one], tmp_path / "page", radii=[0.0, 0.5], confidence=0.95, subject="")


def test_a_run_is_attacked_by_the_gradients_of_its_network(tmp_path: Path):
    save_classifier(tmp_path, "run")
    backend = opened(tmp_path, "run", kind="torch")
    shape = (MODEL.shape["channels"], MODEL.shape["image_size"], MODEL.shape["image_size"])
    smoothed = Smoothed(backend, shape=shape, trained=tmp_path / "models/run")
    x = torch.rand(4, *shape, requires_grad=True)
    _, split = smoothed._fitted(x.detach(), [0, 1, 2, 3])

    scores = search.differentiable(smoothed, split)(x, torch.tensor(SIGMA))

    torch.testing.assert_close(scores.detach(), backend.scores(x.detach()))
    assert torch.autograd.grad(scores.sum(), x)[0].abs().sum() > 0
