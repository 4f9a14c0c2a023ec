"""A written radius is never above the certified one, and a table is read as it was written."""

import dataclasses
from decimal import Decimal

import mpmath
import numpy as np
import pytest
from builders import header, many, refused, row
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from rrcm.certification import certify
from rrcm.certification.votes import bounds
from rrcm.core import registry
from rrcm.core.errors import CertificateError, ConfigError, DataError
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


def test_bounds_as_they_are_read():
    """Golden: where rounding to the nearest claimed more."""
    assert certify.printed(0.312952, certify.DOWN, places=4) == "0.3129"
    assert certify.printed(0.360644, certify.DOWN, places=3) == "0.360"
    assert certify.printed(0.3936, certify.UP, digits=2, scale=100) == "40"
    assert certify.printed(0.001, certify.UP, digits=2, scale=1234) == "1.3"
    assert certify.printed(0.001 / 6, certify.DOWN, digits=2) == "0.00016"
    assert certify.printed(0.1143, certify.UP, places=1, scale=100) == "11.5"
    assert certify.one_minus(1e-7, certify.DOWN, scale=100) == "99.99999"


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


def test_nobody_is_right_about_an_image_of_unknown_class():
    """Least of all by abstaining, which is -1, too."""
    rows = [row(0, UNKNOWN, [10, 0, 0], [60, 40, 0]), row(1, UNKNOWN, [10, 0, 0], [100, 0, 0])]

    made = table(rows)

    assert made["predict"].tolist() == [-1, 0]
    assert made["correct"].tolist() == [0, 0]


@few
@given(st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 2), st.integers(0, 100)), max_size=5))
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


def test_a_table_names_the_split_of_its_images_and_of_none_does_not():
    of = table(header=header(n=100, split="choice"))

    assert list(of) == [*COLUMNS, "split"] and {*of["split"]} == {"choice"}
    assert list(table()) == COLUMNS


def test_what_cannot_be_certified_is_refused():
    with refused(CertificateError, "100 votes can never certify"):
        table(alpha=1e-40)
    with refused(
        ConfigError, "rrcm/certification/certificates/ has no 'coen'", "Did you mean 'cohen'?"
    ):
        table(certificates=["coen"])


# Several certificates.

ALL = registry.names("certificates")


@pytest.mark.parametrize("first", ALL)
def test_the_first_certificate_fills_the_columns_and_the_others_have_their_own(first):
    others = [name for name in ALL if name != first]

    made = table(certificates=[first, *others], alpha=0.05)

    extra = [f"{what}_{name}" for name in others for what in ("predict", "radius")]
    assert list(made) == [*COLUMNS, *extra]
    for name in ALL:
        alone = table(certificates=[name], alpha=0.05)
        assert alone["predict"].tolist() == made[extra_or("predict", name, first)].tolist()
        assert alone["radius"].tolist() == made[extra_or("radius", name, first)].tolist()
        assert list(alone) == [*COLUMNS]
    assert (made[["radius", *extra[1::2]]] > 0).any().all()


def extra_or(what, name, first):
    return what if name == first else f"{what}_{name}"


def test_what_has_no_label_is_neither_correct_nor_wrong(tmp_path):
    path = tmp_path / "table.csv"
    made = table([row(0, UNKNOWN, [10, 0, 0], [99, 1, 0]), row(1, 0, [10, 0, 0], [99, 1, 0])])

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


@pytest.mark.parametrize(
    "name", ["NA", "null", "nan", "None", "=1+1", "-x", "'", "a,b", "\x1b[31m"]
)
def test_the_name_of_a_picture_is_read_as_it_was_written(tmp_path, name):
    made = table()
    made["file"] = name
    certify.write(made, tmp_path / "table.csv")

    assert set(certify.read(tmp_path / "table.csv")["file"]) == {name}


def test_an_image_of_which_nothing_is_known_abstains():
    rows = [row(1, 0, [0, 0, 0], stop="budget"), row(2, 0, [9, 1, 0], stop="budget")]
    grid = header(stop="grid", stopping={"radii": [0.0], "beta": 0.01}, budget=1.0)

    made = table(rows, grid, certificates=["cohen", "two_class"])

    for line in made.to_dict("records"):
        assert (line["predict"], line["radius"], line["n"], line["p_A"]) == (-1, 0, 0, 0)
        assert (line["predict_two_class"], line["radius_two_class"], line["correct"]) == (-1, 0, 0)
    assert made["stop"].tolist() == ["budget", "budget"]


def test_a_rule_bounds_what_it_stopped():
    """The radius is that of all looks of the row, under the rule of the header."""
    definition = header(
        n=400, sigma=0.25, stop="anytime", stopping={"tolerance": 0.05, "beta": 0.01}
    )
    one = row(1, 0, [10, 0, 0], [98, 2, 0], [150, 10, 0], stop="certified")

    (line,) = table([one], definition).to_dict("records")

    history = [(100, 98), (160, 150)]
    radius = bounds.radius(definition.rule().complement(history, 0.001), sigma=0.25)
    assert line["radius"] == certify.floor(radius) > 0
    assert (line["n_A"], line["n"], line["stop"]) == (150, 160, "certified")


# What noise is short of Gaussian.


@pytest.mark.parametrize("name", ALL)
def test_slack_of_every_draw_is_taken_off_alpha(name):
    """10 draws select, 100 bound: each may fall elsewhere with that chance."""
    slack, alpha = 1e-4, 0.05
    short = dataclasses.replace(HEADER, slack=slack, alpha=alpha)

    made = table(header=short, certificates=[name], alpha=alpha)

    less = table(certificates=[name], alpha=alpha - 110 * slack)
    assert made.equals(less)
    assert made["radius"].sum() < table(certificates=[name], alpha=alpha)["radius"].sum()
    assert short.rule().claim.alpha == pytest.approx(alpha - 110 * slack, rel=1e-12)


def test_alpha_that_noise_uses_up_is_refused():
    with refused(CertificateError, "alpha = 0.001 is spent", "gaussian"):
        table(header=dataclasses.replace(HEADER, slack=0.001 / 110))


# Reading.


@pytest.mark.parametrize("column", COLUMNS)
def test_every_column_is_needed(tmp_path, column):
    table().drop(columns=column).to_csv(tmp_path / "table.csv", index=False)

    with refused(DataError, "not a table of certificates", f"no column {column!r}"):
        certify.read(tmp_path / "table.csv")


HEAD = ",".join(COLUMNS) + "\n"


@pytest.mark.parametrize(
    "content",
    [
        b"idx,label\n1,2\n1,2,3\n",
        f"{HEAD}1,2,3,far,1,99,100,0.9,n\n".encode(),
        f"{HEAD}1,2,3,0.5,1,99,100,0.9\n".encode(),
        f"{HEAD}1,2,3,0.5,1,99,100,0.9,n,1\n".encode(),
        f"{HEAD}1.5,2,3,0.5,1,99,100,0.9,n\n".encode(),
        f"{HEAD}1,2,3,,1,99,100,0.9,n\n".encode(),
    ],
    ids=["ragged", "text", "short", "long", "fraction", "gap"],
)
def test_what_is_no_table_is_refused(tmp_path, content):
    (tmp_path / "table.csv").write_bytes(content)

    with refused(DataError, f"{tmp_path}/table.csv: not a table of certificates"):
        certify.read(tmp_path / "table.csv")
