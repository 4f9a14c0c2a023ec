"""A written radius is never above the certified one, and a table is read as it was written."""

import dataclasses
import itertools
from decimal import Decimal

import mpmath
import numpy as np
import pytest
from builders import certificates, header, many, refused, row
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from rrcm.auditing.audit import audit
from rrcm.certification import certify, tables, tsv
from rrcm.core.errors import CertificateError, DataError
from rrcm.core.labels import UNKNOWN

COLUMNS = ["idx", "label", "predict", "radius", "correct", "n_A", "n", "p_A", "stop"]
HEADER = header(n0=10, n=100, sigma=0.25)
ROWS = [
    row(7, 2, [0, 0, 10], [0, 0, 100]),
    row(3, 0, [4, 6, 0], [1, 99, 0]),
    row(11, 1, [5, 5, 0], [60, 20, 20]),
]


def table(rows=ROWS, header=HEADER, **changes):
    arguments = {"certificates": ["cohen"], "alpha": 0.001} | changes
    return certify.certify(header, rows, **arguments)


def written(folder, what):
    certify.write(what, folder / "table.csv")
    return (folder / "table.csv").read_text()


@many
@given(st.floats(0, 1000) | st.integers(0, 10**9).map(lambda i: i / 1e6), st.integers(2, 6))
def test_floor_never_rounds_up(x, digits):
    """Neither the number nor the decimal that is written, and both are near."""
    decimal = Decimal(f"{certify.floor(x, digits):.{digits}f}")

    assert certify.floor(x, digits) <= x
    assert 0 <= Decimal(x) - decimal < 2 * Decimal(1).scaleb(-digits)


WAYS = (certify.DOWN, certify.UP)
NUMBERS = st.floats(-1e3, 1e3) | st.integers(-(10**6), 10**6).map(lambda i: i / 1e6)


@many
@given(
    NUMBERS | st.floats(1e-12, 1e-3),
    st.sampled_from([{"places": k} for k in range(7)] + [{"digits": k} for k in range(1, 16)]),
    st.sampled_from([1, 100]),
)
def test_a_printed_bound_never_claims_more(bound, form, scale):
    """A lower bound is at most the bound, an upper one at least, and both are its neighbours."""
    exact = Decimal(repr(bound)) * scale
    low, high = (Decimal(certify.printed(bound, d, scale=scale, **form)) for d in WAYS)

    assert low <= exact <= high
    places = form.get("places", form.get("digits", 0) - 1 - exact.adjusted())
    assert high - low <= Decimal(10).scaleb(-places - 1) * (exact not in (low, high))
    assert not certify.printed(bound, certify.UP, places=3).startswith("-0.000")


@many
@given(st.floats(min_value=0, max_value=1, exclude_min=True, exclude_max=True))
def test_no_confidence_is_rounded_to_certainty(alpha):
    for scale in (1, 100):
        sure = Decimal(certify.one_minus(alpha, certify.DOWN, scale=scale))

        assert 0 <= sure < scale
        assert scale - sure >= scale * Decimal(repr(alpha)) * (1 - Decimal("1e-27"))


@pytest.mark.parametrize(("n", "alpha"), [(10, 0.001), (37, 0.001), (100, 0.05)])
def test_every_written_radius_is_true_to_fifty_digits(tmp_path, n, alpha):
    """Were the class as improbable as a written radius r says, p = ndtr(r / sigma), then k or more
    of n votes would have a probability of at most alpha. All k, in arithmetic of 50 digits.
    """
    rows = [row(k, 0, [10, 0, 0], [k, n - k, 0]) for k in range(n + 1)]
    made = table(rows, header(n=n, sigma=0.25), alpha=alpha)
    lines = [line.split(",") for line in written(tmp_path, made).splitlines()[1:]]
    some = 0
    with mpmath.workdps(50):
        for k, fields in enumerate(lines):
            line = dict(zip(COLUMNS, fields, strict=True))
            for p in (mpmath.ncdf(mpmath.mpf(line["radius"]) * 4), mpmath.mpf(line["p_A"])):
                if line["predict"] == "0":
                    tail = mpmath.fsum(
                        mpmath.binomial(n, j) * p**j * (1 - p) ** (n - j) for j in range(k, n + 1)
                    )
                    some += 1

                    assert tail <= mpmath.mpf(str(alpha))

    assert some > 0


def test_a_table_is_what_its_votes_say(tmp_path):
    """Golden: p_A is the `low` of scipy's binomtest(n_A, 100).proportion_ci(0.998, "exact")."""
    assert written(tmp_path, table()) == (
        f"{','.join(COLUMNS)}\n"
        "7,2,2,0.375118,1,100,100,0.933254,n\n"
        "3,0,1,0.337314,0,99,100,0.911373,n\n"
        "11,1,-1,0.000000,0,60,100,0.440984,n\n"
    )
    assert 0.337314 <= 0.25 * norm.ppf(0.911373) < 0.337315


@few
@given(
    st.lists(
        st.tuples(st.integers(-1, 2), st.integers(0, 2), st.integers(0, 100)),
        min_size=1,
        max_size=5,
    )
)
def test_writing_and_reading_are_inverses(tmp_path_factory, images):
    rows = [
        row(idx, label, np.eye(3, dtype=int)[lead] * 10, [k, 100 - k, 0])
        for idx, (label, lead, k) in enumerate(images)
    ]
    path = tmp_path_factory.mktemp("table") / "table.csv"
    made = table(rows, certificates=["cohen", "two_class"])

    certify.write(made, path)
    again = certify.read(path)

    assert list(again) == list(made) and list(made)[: len(COLUMNS)] == [*certify.COLUMNS]
    assert again.to_dict("records") == made.to_dict("records")
    first = path.read_bytes()
    certify.write(again, path)
    assert path.read_bytes() == first


# Several certificates.

ALL = ["cohen", "two_class"]  # of one noise


def test_the_first_certificate_fills_the_columns_and_the_others_have_their_own():
    for names in (ALL, ALL[::-1]):
        made = table(
            certificates=names, alpha=0.05, header=dataclasses.replace(HEADER, split="choice")
        )

        extra = [[f"predict_{name}", f"radius_{name}"] for name in names[1:]]
        assert list(made) == [*COLUMNS, *itertools.chain(*extra), "split"]
        assert {*made["split"]} == {"choice"}
        for name, columns in zip(names, (["predict", "radius"], *extra), strict=True):
            alone = table(certificates=[name], alpha=0.05)[["predict", "radius"]]
            assert alone.values.tolist() == made[columns].values.tolist()
            assert (made[columns[1]] > 0).any()


def test_what_has_no_label_is_neither_correct_nor_wrong(tmp_path):
    path = tmp_path / "table.csv"
    made = table([row(0, UNKNOWN, [10, 0, 0], [99, 1, 0]), row(1, 0, [10, 0, 0], [99, 1, 0])])
    abstention = table([row(0, UNKNOWN, [10, 0, 0], [60, 40, 0])])  # -1 as the label
    assert (abstention["predict"].item(), abstention["correct"].item()) == (-1, 0)

    certify.write(made, path)

    place = COLUMNS.index("correct")
    _, unknown, known = (line.split(",") for line in path.read_text().splitlines())
    assert (unknown[place], known[place]) == ("", "1")
    assert certify.read(path)["correct"].tolist() == made["correct"].tolist() == [0, 1]
    path.write_text(
        path.read_text().replace(",".join(known), ",".join([*known[:5], "", *known[6:]]))
    )
    with refused(DataError, "not a table of certificates"):
        certify.read(path)


def test_the_name_of_a_picture_is_read_as_it_was_written(tmp_path):
    names = ["NA", "null", "=1+1", "-x", "'", "a,b", "\x1b[31m"]
    made = table([row(i, 0, [10, 0, 0], [99, 1, 0]) for i in range(len(names))])
    made["file"] = names
    certify.write(made, tmp_path / "table.csv")

    assert certify.read(tmp_path / "table.csv")["file"].tolist() == names
    made["name"] = [None, *"bcdefg"]  # as `Answers.to_pandas` of an abstention
    made.to_csv(tmp_path / "table.csv", index=False)
    assert certify.read(tmp_path / "table.csv")["name"].tolist() == ["", *"bcdefg"]


def test_an_image_of_which_nothing_is_known_abstains():
    rows = [row(1, 0, [0, 0, 0], stop="budget"), row(2, 0, [9, 1, 0], stop="budget")]
    grid = header(stop="grid", stopping={"radii": [0.0], "beta": 0.01}, budget=1.0)

    made = table(rows, grid, certificates=["cohen", "two_class"])

    for line in made.to_dict("records"):
        assert (line["predict"], line["radius"], line["n"], line["p_A"]) == (-1, 0, 0, 0)
        assert (line["predict_two_class"], line["radius_two_class"], line["correct"]) == (-1, 0, 0)
    assert made["stop"].tolist() == ["budget", "budget"]
    assert rows[0].votes(3).counts.shape == (0, 3)


# What noise is short of Gaussian.


def test_slack_of_every_draw_is_taken_off_alpha():
    """10 draws select, 100 bound: each may fall elsewhere with that chance."""
    slack, alpha = 1e-4, 0.05
    short = dataclasses.replace(HEADER, slack=slack, alpha=alpha)

    for name in ALL:
        made = table(header=short, certificates=[name], alpha=alpha)
        assert made.equals(table(certificates=[name], alpha=alpha - 110 * slack))
    assert short.rule().claim.alpha == pytest.approx(alpha - 110 * slack, rel=1e-12)
    with refused(CertificateError, "alpha = 0.001 is spent", "gaussian"):
        table(header=dataclasses.replace(HEADER, slack=0.001 / 110))


# Reading.


def test_what_is_no_table_is_refused(tmp_path):
    path, head = tmp_path / "table.csv", ",".join(COLUMNS) + "\n"
    for column in COLUMNS:
        table().drop(columns=column).to_csv(path, index=False)
        with refused(DataError, "not a table of certificates", f"no column {column!r}"):
            certify.read(path)
    good = "1,2,3,0.5,1,99,100,0.9,n\n"
    for content, words in (
        ("idx,label\n1,2\n1,2,3\n", ": not a table of certificates"),
        (f"{head}{good}1,2,3,far,1,99,100,0.9,n\n", ":3: not a table of certificates (radius is"),
        (f"{head}{good}1,2,3,0.5,1,99,100,0.9\n", ":3: not a table of certificates (stop is empty"),
        (
            f"{head}{good}1,2,3,0.5,1,99,100,0.9,\n",
            ":3: not a table of certificates (stop is empty",
        ),
        (f"{head[:-1]},label\n{good[:-1]},0\n", ":1: column 'label' comes twice"),
        (f"{head}1,2,3,0.5,1,99,100,0.9,n,1\n", ":2: not a table of certificates (the line is too"),
        (f"{head}{good}1.5,2,3,0.5,1,99,100,0.9,n\n", ":3: not a table of certificates (idx is"),
        (f"{head}{good}1,2,3,,1,99,100,0.9,n\n", ":3: not a table of certificates"),
    ):
        path.write_text(content)
        with refused(DataError, f"{path}{words}"):
            certify.read(path)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"correct": 1}, ":3: correct 1 is invalid"),
        ({"predict": 0, "radius": 0.5}, ":3: correct 0 is invalid"),
        ({"radius": 0.5}, ":3: radius 0.5 is invalid"),
        ({"predict": 2, "radius": np.inf}, ":3: radius inf is invalid"),
        ({"label": -2}, ":3: label -2 is invalid"),
        ({"idx": 0}, ":3: idx 0 comes twice"),
        ({"label": -1, "predict": 0}, ":3: label -1 is invalid"),  # as if the two were swapped
    ],
)
def test_a_table_that_contradicts_itself_is_refused_and_audited(tmp_path, wrong, words):
    """A wrong `correct` was believed, and made a better classifier of the same votes."""
    path, good = tmp_path / "a.csv", certificates([0, -1, 0], [0.5, 0.0, 0.2])
    certify.write(good, path)
    certify.read(path)
    bad = good.copy()
    for column, value in wrong.items():
        bad[column] = bad[column].astype(type(value))
        bad.loc[1, column] = value
    for form, write in ((".csv", certify.write), (".tsv", tsv.write)):
        if form == ".tsv" and wrong.get("radius") == np.inf:
            continue
        write(bad, path.with_suffix(form))
        with refused(DataError, f"a{form}{words}", "`rrcm audit` says what is wrong"):
            tables.read(path.with_suffix(form))
        assert audit(path.with_suffix(form)).findings
    certify.write(good.iloc[:0], path)
    with refused(DataError, "no images"):
        certify.read(path)


def test_what_a_table_has_beside_its_certificates_is_checked_too(tmp_path):
    path, good = tmp_path / "a.csv", certificates([0, -1, 0], [0.5, 0.0, 0.2])
    for more, words in (
        ({"clean": -2}, "a.csv:2: clean -2 is invalid"),
        ({"clean": "x"}, "a.csv:2: not a table of certificates (clean is 'x', expected a whole"),
        ({"attacked": 0.4}, "no column 'attacked_to'"),
        ({"attacked": -0.4, "attacked_to": 2}, "a.csv:2: attacked -0.4 is invalid"),
        ({"attacked": 0.4, "attacked_to": good["label"]}, "a.csv:2: attacked_to 0 is invalid"),
        ({"split": ["test", "choice", "test"]}, "images of several values of split"),
        ({"norm": ["l2", "linf", "l2"]}, "radii of several values of norm"),
        ({"norm": "L2"}, "a.csv:2: norm L2 is invalid"),
        ({"norm": ""}, "norm is empty"),
        ({"top": [2, 3, 2]}, "radii of several values of top"),
        ({"top": 0}, "a.csv:2: top 0 is invalid"),
        ({"n": [1000, 900, 1000]}, "a.csv:3: n 900 is invalid"),
        ({"top": 1.5}, "top is '1.500000', expected a whole number"),
    ):
        certify.write(good.assign(**more), path)
        with refused(DataError, words):
            certify.read(path)
        if any(one in words for one in ("several", "norm L2", "top 0")):
            assert audit(path).trusted is False
    certify.write(good.assign(attacked=[0.4, 0.1, np.nan], attacked_to=1), path)
    certify.read(path)
    assert "within the certified radius" in audit(path).verdict
