"""The report shows the statistics, on a page that needs nothing else, in the same bytes always."""

import dataclasses
import re
from html import unescape
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pandas as pd
import pytest
from builders import certificates
from helpers import MINI

from rrcm import figures, report, statistics
from rrcm.certify import floor
from rrcm.settings import Eval

RADII, CONFIDENCE = MINI.report.radii, MINI.report.confidence


def table(seed, images=20):
    """Certificates of a classifier that is right on about two images of three."""
    rng = np.random.default_rng(seed)
    predict = rng.choice([0, 0, 0, 0, 1, -1], images).tolist()
    return certificates(predict, [floor(rng.uniform(0, 0.8)) * (p != -1) for p in predict])


TABLES = {name: table(seed) for seed, name in enumerate(MINI.evals)}
ENTRIES = report.entries(MINI, TABLES)


def variant(name, **changes):
    """Params in which the first run has a brother that differs in ``changes``; one table each."""
    first, run = next(iter(MINI.runs.items()))
    sigma = changes.pop("eval_sigma", 0.5)
    params = dataclasses.replace(
        MINI,
        runs={first: run, name: dataclasses.replace(run, **changes)},
        evals={
            f"{first}-e": Eval(run=first, architecture="vit", sigma=0.5),
            f"{name}-e": Eval(run=name, architecture="vit", sigma=sigma),
        },
    )
    return params, {evaluation: table(seed) for seed, evaluation in enumerate(params.evals)}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    report.write(ENTRIES, MINI, out)
    return out


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_metrics_are_the_statistics():
    numbers = report.metrics(ENTRIES, radii=RADII, confidence=CONFIDENCE)

    assert numbers.keys() == MINI.evals.keys()
    for name, got in numbers.items():
        assert list(got["certified_accuracy"]) == ["r000", "r025", "r050"]
        for radius, share in zip(RADII, got["certified_accuracy"].values(), strict=True):
            want = statistics.certified_accuracy(TABLES[name], radius, confidence=CONFIDENCE)
            assert share == pytest.approx(dataclasses.asdict(want), abs=5e-7)
        acr = statistics.average_certified_radius(TABLES[name])
        assert got["average_certified_radius"] == pytest.approx(acr, abs=5e-7)
        assert got["abstention"] == pytest.approx(statistics.abstention(TABLES[name]), abs=5e-7)
        assert got["images"] == 20


def test_radii_that_differ_are_metrics_that_differ():
    fine = report.metrics(ENTRIES, radii=[0.25, 0.251, 0.2511], confidence=CONFIDENCE)

    assert all(len(numbers["certified_accuracy"]) == 3 for numbers in fine.values())


def test_every_evaluation_is_a_row():
    made = report.accuracy_table(ENTRIES, radii=RADII, confidence=CONFIDENCE)

    assert list(made) == ["σ", "method", "r = 0", "r = 0.25", "r = 0.5", "ACR", "abstain %"]
    assert made["method"].tolist() == [entry.method for entry in ENTRIES]
    for entry, row in zip(ENTRIES, made.to_dict("records"), strict=True):
        for radius in RADII:
            share = statistics.certified_accuracy(entry.table, radius, confidence=CONFIDENCE)
            numbers = [100 * share.value, 100 * share.low, 100 * share.high]
            assert row[f"r = {radius:g}"] == "{:.1f} [{:.1f}, {:.1f}]".format(*numbers)
        assert row["ACR"] == f"{statistics.average_certified_radius(entry.table):.3f}"
        assert row["abstain %"] == f"{100 * statistics.abstention(entry.table):.1f}"


def test_methods_of_one_sigma_are_compared_in_pairs():
    made = report.comparison_table(ENTRIES, radii=RADII)
    first, second = (entry.table for entry in ENTRIES)

    assert {(row["A"], row["B"]) for row in made.to_dict("records")} == {
        tuple(entry.method for entry in ENTRIES)
    }
    for row in made.to_dict("records"):
        test = statistics.mcnemar(first, second, float(row["r"]))
        assert (row["only A"], row["only B"]) == (test.only_first, test.only_second)
        assert row["p"] == f"{test.p:.2g}"


def test_what_cannot_be_compared_is_not():
    """Other sigmas are other questions; twins do not differ; beyond all radii nothing does."""
    apart = report.entries(*variant("other", eval_sigma=0.25))
    twins = [dataclasses.replace(entry, table=table(0)) for entry in ENTRIES]

    assert report.comparison_table(apart, radii=RADII).empty
    assert report.comparison_table(twins, radii=RADII).empty
    assert report.comparison_table(ENTRIES, radii=[9.0]).empty


def test_markdown_has_a_line_per_row_and_a_cell_per_column():
    made = report.accuracy_table(ENTRIES, radii=RADII, confidence=CONFIDENCE)

    head, rule, *lines = report.markdown(made).splitlines()
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in (head, *lines)]

    assert cells == [list(made), *made.to_numpy().tolist()]
    assert rule == "|" + " --- |" * len(made.columns)


def test_a_report_is_these_files(written):
    curves = {f"curves/{name}.csv" for name in MINI.evals}

    assert contents(written).keys() == curves | {
        "index.html",
        "table.md",
        "certified_accuracy.png",
        "certified_accuracy.svg",
    }
    assert (written / "certified_accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(written / "certified_accuracy.svg").getroot().tag.endswith("svg")
    assert (written / "table.md").read_text() == report.markdown(
        report.accuracy_table(ENTRIES, radii=RADII, confidence=CONFIDENCE)
    )


def test_curves_are_written_as_computed(written):
    for name, made in TABLES.items():
        pd.testing.assert_frame_equal(
            pd.read_csv(written / "curves" / f"{name}.csv"),
            statistics.curve(made),
            atol=5e-7,
            rtol=0,
        )


def test_the_page_needs_nothing_else(written):
    """Nothing is fetched: no script, style sheet, picture or font from elsewhere."""
    page = (written / "index.html").read_text()
    targets = re.findall(r"""(?:\b(?:src|href)="?|\burl\("?)([^")>\s]*)""", page)

    assert targets and all(target.startswith("#") for target in targets)
    assert not re.search(r"<(script|link|img|iframe|object|embed)\b|@import", page)
    assert page.count("<svg") == page.count("</svg>") == 1
    assert page.startswith("<!doctype html>")


def test_the_page_has_every_method_and_number(written):
    page = (written / "index.html").read_text()
    shown = [unescape(cell) for cell in re.findall(r"<td[^>]*>([^<]*)</td>", page)]
    accuracy = report.accuracy_table(ENTRIES, radii=RADII, confidence=CONFIDENCE)
    comparison = report.comparison_table(ENTRIES, radii=RADII)

    cells = [str(cell) for made in (accuracy, comparison) for cell in made.to_numpy().ravel()]

    assert shown == cells
    assert "digits, 20 test images" in page
    assert "n₀ = 20, up to n = 100" in page and "α = 0.001" in page and "cohen" in page
    assert "stopping rule: grid" in page and "false with probability at most α = 0.001" in page
    assert "onnx, fp32" in page and "95 % Wilson interval" in page


def test_two_reports_are_the_same_bytes(written, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")  # as if at another time
    with matplotlib.rc_context({"svg.hashsalt": "another", "font.size": 30, "axes.grid": True}):
        report.write(ENTRIES, MINI, tmp_path)

    assert contents(tmp_path) == contents(written)


def labels(params, tables):
    found = report.entries(params, tables)
    return report.accuracy_table(found, radii=[0.0], confidence=CONFIDENCE)["method"].tolist()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"method": "gaussian"}, ["rrcm", "gaussian"]),
        ({"seed": 1}, ["rrcm seed 0", "rrcm seed 1"]),
        ({"model": "small"}, ["small rrcm", "tiny rrcm"]),
        ({"sigma": 0.25}, ["rrcm (trained at σ = 0.25)", "rrcm"]),
    ],
    ids=["method", "seed", "model", "sigma"],
)
def test_labels_tell_entries_apart(changes, expected):
    assert labels(*variant("other", **changes)) == expected


@pytest.mark.parametrize(
    "changes", [{"recipe": "scratch"}, {"start": "shards"}, {"loss": {"lbd": 5.0}}], ids=str
)
def test_no_entry_hides_another(tmp_path, monkeypatch, changes):
    """Whatever they differ in, entries of one sigma have labels of their own, and curves."""
    drawn, draw = {}, figures.certified_accuracy
    monkeypatch.setattr(figures, "certified_accuracy", lambda c: drawn.update(c) or draw(c))
    params, tables = variant("other", **changes)

    report.write(report.entries(params, tables), params, tmp_path)

    assert len(drawn[0.5]) == 2
    assert len(set(labels(params, tables))) == 2


def test_the_figure_has_a_panel_per_sigma_and_a_staircase_per_method():
    """Drawn up to and including a radius: a step before its point."""
    curves = {sigma: {e.method: statistics.curve(e.table) for e in ENTRIES} for sigma in (1, 0.25)}

    axes = figures.certified_accuracy(curves).axes

    assert [axis.get_title() for axis in axes] == ["σ = 0.25", "σ = 1"]
    for axis in axes:
        for entry, line in zip(ENTRIES, axis.get_lines(), strict=True):
            x, y = line.get_xdata(), line.get_ydata()
            assert (line.get_label(), line.get_drawstyle()) == (entry.method, "steps-pre")
            for radius in (0.0, 0.1, 0.33, 0.7, x[-1]):
                share = statistics.certified(entry.table, radius).mean()
                assert y[np.searchsorted(x, radius)] == pytest.approx(100 * share)
            assert y[-1] == 0
