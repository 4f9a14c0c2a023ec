"""Where n, alpha and sigma are all stated, a table is judged by what they imply."""

import numpy as np
import pandas as pd
import pytest
from audit_tables import alarms, table
from builders import random_votes, refused

from benchmarks.audit import simulate, write_published
from rrcm.auditing.audit import audit
from rrcm.certification import certify, tsv
from rrcm.certification.certificates import _top
from rrcm.certification.votes import records
from rrcm.cli.commands import tables
from rrcm.core.errors import CertificateError, DataError

STATED = {"n": 100_000, "alpha": 0.001, "sigma": 0.5}


def published(folder, seed, *, sure, doubt, images=500, **made):
    """A table of three digits, of images that are almost all undoubted (or not) or far from it."""
    rng = np.random.default_rng(seed)
    far = {"sure": sure, "doubt": doubt, "others": (4, 2), "images": images}
    write_published(simulate(rng, **(STATED | made | far)), folder / "log.tsv")
    return folder / "log.tsv"


@pytest.mark.parametrize("images", [4, 40, 500])
@pytest.mark.parametrize(("sure", "doubt"), [(0.19, (-9, -8)), (0.02, (-9, -8)), (0.0, (-4, -3))])
def test_a_clean_table_is_trusted_however_little_its_radii_tell(tmp_path, sure, doubt, images):
    """71 of 500 radii of unanimous votes and no other that tells was once "cannot be checked"."""
    for seed in range(3):
        path = published(tmp_path, seed, sure=sure, doubt=doubt, images=images)

        result = audit(path, **STATED)

        assert result.trusted, str(result)
        assert all("rounded to the nearest" in text for _, _, text in alarms(result))
        assert result.inferred[0].n == 100_000 and result.inferred[0].alpha == 0.001


@pytest.mark.parametrize("made", [{"alpha": 0.01}, {"sigma": 1.0}, {"n": 1_000_000}])
def test_one_that_was_made_otherwise_is_not(tmp_path, made):
    for seed in range(3):
        result = audit(published(tmp_path, seed, sure=0.19, doubt=(-9, -8), **made), **STATED)

        assert result.trusted is False, str(result)
        assert "as stated" in result.verdict


def test_radii_in_units_of_pixels_are_above_any_of_the_stated_sigma(tmp_path):
    """At any n and alpha: a billion unanimous votes at one half give 3.05 at sigma = 0.5."""
    found = table(100_000, images=100)
    for scale in (1, 255):
        radii = [float(f"{scale * r:.2g}") for r in found["exact"]]
        tsv.write(found.assign(radius=radii), tmp_path / "a.tsv")

        result = audit(tmp_path / "a.tsv", sigma=0.5)

        assert result.trusted is {1: None, 255: False}[scale]
    words = (
        "is above 3.0",
        "1,000,000,000 unanimous votes at alpha = 0.5 with sigma = 0.5 as stated",
    )
    with refused(DataError, "a.tsv", *words):
        tables.read(tmp_path / "a.tsv", sigma=0.5)


def test_a_class_that_stands_for_abstentions_is_named(tmp_path):
    found = table(1_000, images=300)
    none = found["predict"] == -1
    assert none.sum() > 3
    for abstention, named in ((-1, 0), (10, 1)):
        tsv.write(found.assign(predict=found["predict"].mask(none, abstention)), tmp_path / "a.tsv")

        said = [text for _, _, text in alarms(audit(tmp_path / "a.tsv"))]

        assert sum("class 10 is the label of no image" in text for text in said) == named


def test_fewer_unanimous_votes_are_no_fault_but_are_not_as_stated(tmp_path):
    """A heap below the largest radius: drawing may have stopped early, which is allowed."""
    for n in (10_000, 30_000):
        result = audit(published(tmp_path, 0, sure=0.19, doubt=(-9, -8), n=n), **STATED)

        assert result.trusted is not True, str(result)


def of_norm(norm, radius, path):
    text = table(1_000, images=300).assign(time="")
    text[f"{norm}_radius"] = radius(text["exact"])
    names = [f"{norm}_radius" if name == "radius" else name for name in tsv.COLUMNS]
    text[names].to_csv(path, sep="\t", index=False, float_format="%.3g")
    return path


def test_radii_of_linf_are_explained_by_the_values_of_an_image_alone(tmp_path):
    """Of 3,072 values, those of l2 by their root; undivided, they claim 55 times too much."""
    stated = {"n": 1_000, "alpha": 0.001, "sigma": 0.5}
    for scale, trusted in ((3072**0.5, True), (1.0, False)):
        path = of_norm("linf", lambda r, scale=scale: r / scale, tmp_path / "a.tsv")

        assert audit(path, **stated, values=3072).trusted is trusted
        free = audit(path, n=1_000, alpha=0.001, values=3072)
        assert free.trusted is (True if trusted else None), str(free)
        assert trusted or "needs sigma = 27.7" in free.verdict
        result = audit(path, **stated)
        assert result.trusted is None and "--linf D" in result.verdict
    with refused(CertificateError, "values (--linf) > 0", "values=0"):
        audit(path, values=0)


def test_radii_of_l1_are_of_noises_that_nobody_states(tmp_path):
    """Laplace noise gives radii beyond those of Gaussian noise of the same sigma."""
    path = of_norm("l1", lambda r: 2 * r, tmp_path / "a.tsv")

    assert audit(path, n=1_000, alpha=0.001, sigma=0.5).trusted is None


def test_bounds_of_other_radii_are_those_of_the_stated_values(tmp_path):
    """Top-k has k + 1 bounds, each at its share of alpha; a norm of l1 one."""
    votes = random_votes(0, images=60, n=1_000, alpha=0.001, stop="none", stopping={})
    of_top = _top.table(*votes, k=2, alpha=0.001)
    of_l1 = certify.certify(*votes, certificates=["cohen"], alpha=0.001).assign(norm="l1")
    for made in (of_top, of_l1):
        certify.write(made, tmp_path / "a.csv")
        for stated, words in (
            ({"n": 1_000, "alpha": 0.001}, ""),
            ({"n": 5}, "up to 1,000 draws were made, not 5"),
            ({"alpha": 1e-9}, "bounds are at alpha = 0.001, not at 1e-09"),
            ({"images": 6_000}, "60 of 6,000 images: it is unfinished or a part"),
        ):
            result = audit(tmp_path / "a.csv", **stated)

            told = " ".join(text for _, _, text in alarms(result))
            assert words in told and bool(words) == bool(told), (stated, str(result))
    certify.write(of_top.iloc[:0], tmp_path / "a.csv")
    assert audit(tmp_path / "a.csv").trusted is None
    tsv.write(of_l1, tmp_path / "a.tsv")
    assert "--linf was not used" in str(audit(tmp_path / "a.tsv", values=64))


def test_images_that_are_not_named_or_of_votes_are_counted_too(tmp_path):
    rows = table(1_000, images=40).assign(time="")[[*tsv.COLUMNS[1:]]]
    rows.to_csv(tmp_path / "a.tsv", sep="\t", index=False, header=False)
    votes = random_votes(0, images=40, n=1_000)
    records.write(tmp_path / "a.jsonl", *votes)

    for name, images, words in (
        ("a.tsv", 800, ""),  # every 20th, perhaps
        ("a.tsv", 70, "40 rows of 70 images: it is unfinished or a part"),
        ("a.tsv", 39, "40 rows of 39 images"),
        ("a.jsonl", 40, ""),
        ("a.jsonl", 70, "40 of 70 images: it is unfinished or a part"),
    ):
        told = [str(one) for one in audit(tmp_path / name, images=images).findings]
        counted = [one for one in told if "unfinished" in one or "rows of" in one]
        assert len(counted) == bool(words) and all(words in one for one in counted), (name, images)


@pytest.mark.parametrize(
    ("idx", "said"),
    [
        (range(0, 10_000, 20), ""),
        (range(0, 5_000, 20), "250 of 500 images, every 20: it is unfinished or a part, from image"
         " 0 to 4980 of 10,000"),
        (range(5_000, 10_000, 20), "from image 5000 to 9980"),
        (range(9), "9 of 10,000 images: it is unfinished or a part, from image 0 to 8"),
        ([i for i in range(0, 10_000, 20) if i % 100 or i in (0, 9_900)], "98 of 500 images are"
         " missing, and none of them at an end"),
        (range(0, 10_001, 5_000), "image 10000 of 10,000, which are counted from 0"),
    ],
)  # fmt: skip
def test_a_regular_selection_that_ends_early_is_named(tmp_path, idx, said):
    rows = pd.concat([table(images=200)] * 3)[: len(idx)].assign(idx=[*idx])
    tsv.write(rows, tmp_path / "a.tsv")

    result = audit(tmp_path / "a.tsv", images=10_000)

    found = [text for _, _, text in alarms(result) if "image" in text]
    assert len(found) == bool(said) and all(said in text for text in found)
    with pytest.raises(CertificateError, match="images > 0"):
        audit(tmp_path / "a.tsv", images=0)


def test_rows_without_idx_are_counted_and_a_second_run_behind_the_first_is_found(tmp_path):
    once = table(images=200).drop(columns="idx").round({"radius": 6})
    again = pd.concat([once, once])
    for name, rows in (("once", once), ("again", again)):
        rows[["label", "predict", "radius", "correct"]].to_csv(
            tmp_path / f"{name}.csv", index=False
        )

    clean, found = (audit(tmp_path / f"{name}.csv") for name in ("once", "again"))
    more = audit(tmp_path / "once.csv", images=199)

    assert not [text for _, _, text in alarms(clean) if "once more" in text]
    assert [lines[0] for _, lines, text in alarms(found) if "once more" in text] == [202]
    assert any("200 rows of 199 images" in text for _, _, text in alarms(more))


def test_labels_that_count_from_one_are_named(tmp_path):
    rows = table(images=200)
    tsv.write(rows.assign(label=rows["label"] + 1, correct=0), tmp_path / "a.tsv")

    found = [text for _, _, text in alarms(audit(tmp_path / "a.tsv"))]

    assert any("predictions are the label -1: does one of the columns" in text for text in found)
