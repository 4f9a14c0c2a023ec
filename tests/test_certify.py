"""A written radius is never above the certified one, and a table is read as it was written."""

from decimal import Decimal

import mpmath
import numpy as np
import pytest
from builders import header, many, refused
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from rrcm import certify, votes
from rrcm.errors import CertificateError, ConfigError, DataError
from rrcm.votes import Row

COLUMNS = ["idx", "label", "predict", "radius", "correct", "n_A", "n", "p_A"]
HEADER = header(n0=10, n=100, sigma=0.25)
ROWS = [
    Row(idx=7, label=2, n0={2: 10}, n={2: 100}),
    Row(idx=3, label=0, n0={0: 4, 1: 6}, n={0: 1, 1: 99}),
    Row(idx=11, label=1, n0={0: 5, 1: 5}, n={0: 60, 1: 20, 2: 20}),
]


def table(rows=ROWS, **changes):
    arguments = {"certificate": "cohen", "alpha": 0.001} | changes
    return certify.certify(HEADER, rows, **arguments)


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


@pytest.mark.parametrize(("n", "alpha"), [(10, 0.001), (37, 0.001), (100, 0.05)])
def test_every_written_radius_is_true_to_fifty_digits(tmp_path, n, alpha):
    """Were the class as improbable as a written radius r says, p = ndtr(r / sigma), then k or more
    of n votes would have a probability of at most alpha. All k, in arithmetic of 50 digits.
    """
    rows = [Row(idx=k, label=0, n0={0: 10}, n={0: k, 1: n - k}) for k in range(n + 1)]
    made = certify.certify(header(n=n, sigma=0.25), rows, certificate="cohen", alpha=alpha)
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
        "7,2,2,0.375118,1,100,100,0.933254\n"
        "3,0,1,0.337314,0,99,100,0.911373\n"
        "11,1,-1,0.000000,0,60,100,0.440984\n"
    )
    assert 0.337314 <= 0.25 * norm.ppf(0.911373) < 0.337315


def test_correct_is_predict_equals_label():
    rows = [Row(idx=i, label=i % 3, n0={i % 2: 10}, n={i % 2: 100}) for i in range(6)]

    made = table(rows)

    assert made["predict"].tolist() == [0, 1, 0, 1, 0, 1]
    assert made["correct"].tolist() == [1, 1, 0, 0, 0, 0]


def test_abstaining_is_never_correct():
    made = table([Row(idx=0, label=0, n0={0: 10}, n={0: 60, 1: 40})])

    assert made.loc[0, ["predict", "radius", "correct"]].tolist() == [-1, 0, 0]


@few
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 100)), max_size=5))
def test_writing_and_reading_are_inverses(tmp_path_factory, images):
    rows = [
        Row(idx=idx, label=label, n0={lead: 10}, n=votes.sparse(np.array([k, 100 - k, 0])))
        for idx, (label, lead, k) in enumerate(images)
    ]
    path = tmp_path_factory.mktemp("table") / "table.csv"
    made = table(rows)

    certify.write(made, path)
    again = certify.read(path)

    assert list(again) == COLUMNS == [*certify.COLUMNS]
    assert again.to_dict("records") == made.to_dict("records")
    first = path.read_bytes()
    certify.write(again, path)
    assert path.read_bytes() == first


def test_images_keep_the_order_of_the_votes():
    assert table()["idx"].tolist() == [7, 3, 11]
    assert table(ROWS[::-1])["idx"].tolist() == [11, 3, 7]


def test_what_cannot_be_certified_is_refused():
    with refused(CertificateError, "100 votes can never certify"):
        table(alpha=1e-40)
    with refused(ConfigError, "rrcm/certificates/ has no 'coen'", "Did you mean 'cohen'?"):
        table(certificate="coen")


def test_a_missing_table_is_named(tmp_path):
    with refused(DataError, f"{tmp_path}/table.csv: not found"):
        certify.read(tmp_path / "table.csv")


@pytest.mark.parametrize("column", COLUMNS)
def test_every_column_is_needed(tmp_path, column):
    written(tmp_path, table().drop(columns=column))

    with refused(DataError, "not a table of certificates", f"no column {column!r}"):
        certify.read(tmp_path / "table.csv")


HEAD = ",".join(COLUMNS) + "\n"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"\x00\x01\x02",
        b"idx,label\n1,2\n1,2,3\n",
        f"{HEAD}1,2,3,far,1,99,100,0.9\n".encode(),
        f"{HEAD}1,2,3,0.5,1,99,100\n".encode(),
        f"{HEAD}1,2,3,0.5,1,99,100,0.9,1\n".encode(),
        f"{HEAD}1.5,2,3,0.5,1,99,100,0.9\n".encode(),
        f"{HEAD}1,2,3,,1,99,100,0.9\n".encode(),
    ],
    ids=["empty", "binary", "zeros", "ragged", "text", "short", "long", "fraction", "gap"],
)
def test_what_is_no_table_is_refused(tmp_path, content):
    (tmp_path / "table.csv").write_bytes(content)

    with refused(DataError, f"{tmp_path}/table.csv: not a table of certificates"):
        certify.read(tmp_path / "table.csv")
