"""The report shows the statistics, on a page that needs nothing else, in the same bytes always."""

import dataclasses
import re
from html import unescape
from xml.etree import ElementTree

import matplotlib
import pandas as pd
import pytest
from builders import random_votes, refused
from helpers import MINI

from rrcm.analysis import entries, report
from rrcm.analysis.estimation import statistics
from rrcm.analysis.page import Page
from rrcm.analysis.presentation import markup, tables
from rrcm.certification import certify
from rrcm.core.errors import DataError

RADII, CONFIDENCE = MINI.report.radii, MINI.report.confidence


GRID = {"radii": RADII, "beta": 0.001}
VOTES = {
    name: random_votes(seed, images=20, n=200, n0=20, stop="grid", stopping=GRID, run=name)
    for seed, name in enumerate(MINI.evals)
}
TABLES = {
    name: certify.certify(*votes, certificates=["cohen"], alpha=0.001)
    for name, votes in VOTES.items()
}
ENTRIES = entries.entries(MINI, TABLES, VOTES)
SUBJECT = "digits <test> images"
SHOWN = {"radii": RADII, "confidence": CONFIDENCE}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    report.write(ENTRIES, out, subject=SUBJECT, **SHOWN)
    return out


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_metrics_are_the_statistics():
    numbers = report.metrics(ENTRIES, radii=RADII)

    assert numbers.keys() == MINI.evals.keys()
    for name, got in numbers.items():
        assert list(got) == ["acr", "abstain", "r000", "r025", "r050"]
        for radius, share in zip(RADII, list(got.values())[2:], strict=True):
            want = statistics.certified(TABLES[name], radius).mean()
            assert share == pytest.approx(want, abs=5e-7)
        acr = statistics.average_certified_radius(TABLES[name])
        assert acr - 1e-6 < got["acr"] <= acr
        abstained = statistics.abstention(TABLES[name])
        assert abstained <= got["abstain"] < abstained + 1e-6


def test_radii_that_differ_are_metrics_that_differ_and_dvc_finds_them():
    """DVC takes a dot in a name for a level."""
    fine = report.metrics(ENTRIES, radii=[0.25, 0.251, 0.2511])

    for numbers in fine.values():
        assert len(numbers) == 5 and not any("." in name for name in numbers)


def test_a_report_is_these_files(written):
    curves = {f"curves/{name}.csv" for name in MINI.evals}
    numbers = {"table.csv", "comparisons.csv"}
    drawings = {"certified_accuracy.png", "certified_accuracy.svg"}

    assert contents(written).keys() == {
        *curves,
        *numbers,
        *drawings,
        *("index.html", "table.md", "table.tex"),
    }
    assert (written / "certified_accuracy.png").read_bytes().startswith(b"\x89PNG")
    svg = ElementTree.parse(written / "certified_accuracy.svg")
    assert svg.getroot().tag.endswith("svg")
    accuracy = tables.accuracy_table(ENTRIES, **SHOWN)
    assert (written / "table.md").read_text() == markup.markdown(accuracy)
    assert (written / "table.tex").read_text() == markup.latex(accuracy)


def test_files_for_machines_are_the_tables(written):
    made = {
        "table.csv": tables.accuracy(ENTRIES, **SHOWN),
        "comparisons.csv": tables.comparisons(ENTRIES, **SHOWN),
    }
    for name, table in made.items():
        read = pd.read_csv(written / name)
        pd.testing.assert_frame_equal(
            read, table.reset_index(drop=True), rtol=1e-8, check_dtype=False
        )


def test_curves_are_written_as_computed(written):
    """Under `grid` they are lower bounds, and say so."""
    for entry, (name, made) in zip(ENTRIES, TABLES.items(), strict=True):
        bound = entry.lower_bounds(statistics.curve(made)["radius"].tolist())
        assert entry.name == name and all(bound)
        pd.testing.assert_frame_equal(
            pd.read_csv(written / "curves" / f"{name}.csv"),
            statistics.curve(made).assign(lower_bound=bound),
            atol=5e-7,
            rtol=0,
        )


def test_the_page_needs_nothing_else(written):
    """Nothing is fetched: no script, style sheet, picture or font from elsewhere."""
    page = (written / "index.html").read_text()
    targets = re.findall(r"""(?:\b(?:src|href)="?|\burl\("?)([^")>\s]*)""", page)

    assert targets
    assert all(target.startswith(("#", "data:image/png;base64,")) for target in targets)
    assert not re.search(r"<(script|link|img|iframe|object|embed)\b|@import", page)
    assert page.count("<svg") == page.count("</svg>") == 1
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len({*names}) > 1
    assert page.startswith("<!doctype html>")


def test_the_page_has_every_table(written):
    page = (written / "index.html").read_text()
    cells = re.findall(r"<td[^>]*>(.*?)</td>", page)
    shown = [unescape(re.sub(r"<[^>]+>", "", cell)) for cell in cells]
    made = (
        tables.accuracy_table(ENTRIES, **SHOWN),
        tables.comparison_table(ENTRIES, tables.comparisons(ENTRIES, **SHOWN)),
        tables.radius_table(ENTRIES, confidence=CONFIDENCE),
        tables.failure_table(ENTRIES),
        tables.drawing_table(ENTRIES),
        tables.origin_table(ENTRIES),
    )

    assert shown == [str(cell) for table in made for cell in table.to_numpy().ravel()]
    assert "digits &lt;test&gt; images · 20 images" in page and "α = 0.001" in page
    assert "n₀ = 20, up to n = 200" in page and "stopping rule: grid" in page
    assert "onnx, fp32" in page and "95 % Wilson interval" in page


def test_the_page_can_be_walked_through_and_heard(written):
    """Every chapter is in the table of contents; figures have texts; p-values are behind a fold."""
    page = (written / "index.html").read_text()
    chapters = re.findall(r'<h2 id="([^"]+)">', page)

    assert re.findall(r'<li><a href="#([^"]+)">', page) == chapters and len(chapters) > 5
    assert len(re.findall(r'<svg role="img" aria-label="[^"]+"', page)) == 1
    assert '<html lang="en">' in page and page.count("<h1>") == page.count("<main>") == 1
    (folded,) = re.findall(r"<details>.*?</details>", page, flags=re.DOTALL)
    assert "p, Holm" in folded and "p, Holm</th>" not in page.replace(folded, "")


def test_two_reports_are_the_same_bytes(written, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")  # as if at another time
    with matplotlib.rc_context({"svg.hashsalt": "another", "font.size": 30, "axes.grid": True}):
        report.write(ENTRIES, tmp_path, subject=SUBJECT, **SHOWN)

    assert contents(tmp_path) == contents(written)


def test_tables_of_others_make_a_page_of_what_they_have(tmp_path, undrawn):
    """Without sigma, alpha, p_A, votes, labels: no figure and no sentence that needs them."""
    known = ["idx", "label", "predict", "radius", "correct"]
    bare = ENTRIES[0].table[known].assign(label=-1, correct=0)
    entry = entries.Entry(name="a-b", model="a-b", method="", sigma=None, table=bare, alpha=None)

    report.write([entry], tmp_path, subject="of others", radii=[0.0, 0.25], confidence=0.95)

    page = (tmp_path / "index.html").read_text()
    figures = {path.stem for path in tmp_path.glob("*.svg")}
    assert figures == {"certified_accuracy"} and "Certified share" in page
    assert "α unknown" in page and "have no labels" in page and "What may be false" not in page


def test_the_band_is_as_wide_as_that_of_the_row_of_fewest_images(tmp_path, undrawn):
    """Closed form: sqrt(log(2 / .05) / 2 n) is 0.3037 for 20 images and 0.6074 for 5."""
    fewer = dataclasses.replace(ENTRIES[1], table=TABLES[ENTRIES[1].name].iloc[:5])

    for found, half in ((ENTRIES[:2], "30.4"), ([ENTRIES[0], fewer], "60.8")):
        report.write(found, tmp_path, subject="", radii=[0.0], confidence=0.95)
        page = (tmp_path / "index.html").read_text()
        assert f"at most {half} points to either side" in page

    Page([ENTRIES[0], fewer], radii=[0.0], confidence=0.95, notes=[]).save(tmp_path / "page.html")
    assert "20 images" not in (tmp_path / "page.html").read_text()  # not all rows have so many


def test_a_refused_report_writes_nothing(tmp_path):
    unlabelled = dataclasses.replace(
        ENTRIES[0], name="blind", table=ENTRIES[0].table.assign(label=-1)
    )
    with refused(DataError, "blind has no labels"):
        report.write([ENTRIES[1], unlabelled], tmp_path, subject="", **SHOWN)
    assert not [*tmp_path.iterdir()]


def test_the_commit_is_on_a_page_that_is_given_it(written, tmp_path, undrawn):
    report.write(ENTRIES, tmp_path, subject=SUBJECT, recorded="commit <abc>", **SHOWN)

    page, bare = ((folder / "index.html").read_text() for folder in (tmp_path, written))
    assert "commit &lt;abc&gt;" in page and "&lt;abc&gt;" not in bare
