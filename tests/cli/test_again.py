"""Certifying again: nothing twice, and what looks wrong is said."""

import dataclasses
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builders import random_votes
from onnx_networks import pictures, save

from rrcm.certification.stopping import anytime, spending
from rrcm.certification.votes import records
from rrcm.cli import requests
from rrcm.cli.commands import on_demand, predict, repeated
from rrcm.cli.options import Options
from rrcm.cli.project import Project
from rrcm.core.errors import PlausibilityWarning

SIDE = 4
TABLE = spending.DEFAULTS | {"radii": [0.0, 0.25, 0.5, 0.75, 1.0]}
ASKED = {"sigma": 0.1, "n": 50, "size": str(SIDE), "channels": 1, "resize": "exact"}


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder outside any checkout: pictures, dark and bright, and what tells them apart."""
    pictures(tmp_path / "pictures", SIDE, each=10)
    save(tmp_path / "right.onnx", SIDE)
    save(tmp_path / "constant.onnx", SIDE, (50.0, 0.0))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(name: str = "right", **options) -> requests.Request:
    source = {"onnx": f"{name}.onnx", "images": Path("pictures")}
    return Project().request(Options(**source | ASKED | options))


# What is there already.


def test_of_votes_only_those_that_are_missing_are_drawn(here: Path, capfd):
    """What shards have, in any order, is of the votes of one process; what is there is used."""
    written = set()
    for shard, known in (("", 0), ("1/3", 7), ("3/3", 13), ("2/3", 20)):
        if shard:
            said = on_demand.certify(asked(shard=shard), Project())
            assert f"share {shard}" in said and "without --shard" in said
        shared = on_demand.certify(asked(), Project())
        (path,) = [Path(line[7:]) for line in shared.splitlines() if line.startswith("votes: ")]
        (table,) = here.glob("results/*.csv")
        noted = capfd.readouterr().err
        assert (f" {known} of 20 images have votes already" in noted) == bool(known)
        written.add((path.read_bytes(), table.read_bytes()))
        assert on_demand.certify(asked(), Project()) == shared and not capfd.readouterr().err
        path.unlink()
        table.unlink()
    assert len(written) == 1


# What looks wrong.


def test_a_warning_comes_once_and_again_with_the_same_votes(here: Path):
    """A network that answers one class has radii; a second run, of the same votes, says so, too."""
    options = "--onnx constant.onnx --images pictures --sigma 0.1 --n 50 --size 4 --channels 1"
    program = [sys.executable, "-m", "rrcm", "certify", *options.split(), "--resize", "exact"]
    first = subprocess.run(program, capture_output=True, text=True, check=True)
    (votes,) = here.glob(".rrcm/votes/*.jsonl")
    drawn = votes.read_bytes()
    with pytest.warns(PlausibilityWarning) as warned:
        again = on_demand.certify(asked("constant"), Project())

    warning = (
        "20 of 20 pictures are answered 'bright' without noise, though 10 are labelled otherwise: "
        "check mean, std, size, channels, the order of the classes"
    )
    assert first.stderr.count(f"\nwarning: {warning}") == first.stderr.count("warning") == 1
    assert first.stderr.startswith("note: 10 of 20 right without noise")
    assert "warning" not in first.stdout and again.startswith("certified accuracy")
    assert [str(one.message).startswith(warning) for one in warned] == [True]
    assert votes.read_bytes() == drawn


@pytest.mark.filterwarnings("error")
def test_a_network_that_is_right_is_not_warned_of(here: Path):
    assert on_demand.certify(asked(), Project()).startswith("certified accuracy")


def test_noise_that_hides_the_pictures_is_warned_of(here: Path):
    """Noise of sigma = 2 adds 4 to the mean square of pixels, so that all pictures look bright."""

    words = "20 of 20 pictures are answered 'bright' under noise .* though 10 .*: check sigma"
    with pytest.warns(PlausibilityWarning, match=words):
        on_demand.certify(asked(sigma=2.0), Project())


def test_a_picture_that_is_there_twice_is_no_second_image_of_an_interval(here: Path):
    without = on_demand.certify(asked(), Project())
    for place in ("dark", "bright"):
        shutil.copy(here / "pictures/dark/1.png", here / "pictures" / place / "again.png")

    said = on_demand.certify(asked(), Project())

    assert "duplicates" not in without
    assert "\nduplicates: 2 of 22 pictures equal others, 1 of them under another label; int" in said


# What was done before, with other settings.


@pytest.mark.parametrize(
    ("backend", "other", "tables"),
    [
        ("onnx", {"precision": "int8", "weights": "1" * 64}, 2),  # of the converted network
        ("onnx", {"run": "another", "weights": "1" * 64}, 1),
        ("foreign/onnx", {"precision": "int8"}, 2),
        ("foreign/onnx", {"weights": "1" * 64}, 1),  # another file of this name
        ("foreign/onnx", {"run": "moved", "n0": 20}, 2),
        ("foreign/onnx", {"classes": ["a", "b", "c"]}, 1),
    ],
)
def test_tables_of_the_same_classifier_are_counted_in_every_precision(
    tmp_path: Path, backend: str, other: dict, tables: int
):
    header, _ = random_votes(0, backend=backend)
    path = tmp_path / "votes.jsonl"
    records.write(path, *random_votes(0, **{"backend": backend} | other))

    said = repeated.line(header, [path], None)

    assert [line.partition(" of ")[0] for line in said] == [
        f"repeated: {count} tables" for count in [tables] if count > 1
    ]


# What nobody names.


@pytest.mark.parametrize("stop", ["spending", "grid", "none"])
def test_radii_that_nobody_names_are_half_sigmas_in_reach(here: Path, capfd, stop: str):
    """Of 1,000 unanimous votes at 0.001, or half of it: 2.46 and 2.43 sigma, eq. 11 and 12."""
    for n, reach in ((1000, 4), (2000, 5)):
        request = asked(sigma=0.05, n=n, stop=stop)
        header, *_ = on_demand.drawn(request, request.source.opened(request.sample))
        radii = on_demand.shown(request.report, header).radii
        assert radii == pytest.approx([i * 0.025 for i in range(reach + 1)], abs=1e-12)
        assert header.stopping.get("radii", radii) == radii
        assert "out of reach" not in on_demand.certify(request, Project())
    sure = on_demand.certify(asked(sigma=0.05, n=1000, stop=stop, radii="0.1,0.125,0.2"), Project())
    (line,) = [line for line in sure.splitlines() if line.startswith("out of reach: ")]
    assert line.startswith("out of reach: r = 0.125, 0.2: 1,000 unanimous votes at sigma = 0.05")
    picture = str(here / "pictures/dark/0.png")
    for radii, far in ((None, False), ("0,0.2", stop != "none")):
        options = ASKED | {"sigma": 0.05, "stop": stop, "radii": radii}
        request = Project().request(Options(onnx="right.onnx", **options))
        assert ("out of reach: r = 0.2" in predict.predict(request, picture)) == far


# What is written.


def written(
    certificates: tuple[str, ...] = ("cohen",), alpha: float = 0.001, seed: int = 0, **changes
) -> str:
    """The name of the certificates of votes that differ in ``changes``."""
    usual = {"run": "a", "n": 1000, "alpha": alpha, "stop": "spending", "stopping": TABLE}
    header, rows = random_votes(0, images=2, **usual | changes)
    header = dataclasses.replace(header, seed=seed)
    return on_demand.certified([*certificates], header, rows, Project())[1].stem


def test_no_table_takes_the_name_of_one_with_other_options(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [
        written(),
        written(("cohen", "two_class")),
        *(
            written((name,), certificate=name, stop="none", stopping={})
            for name in ("cohen", "two_class")
        ),
        *(written(alpha=alpha) for alpha in (0.002, 0.00100000001)),
        *(written(**{key: value}) for key, value in [("n", 2000), ("n0", 50), ("n0", 200)]),
        *(written(**{key: value}) for key, value in [("seed", 1), ("batch_size", 32)]),
        *(written(**{key: value}) for key, value in [("precision", "bf16"), ("subset", "first:9")]),
        *(written(budget=seconds) for seconds in (2.0, 2.0000001)),
        *(
            written(stop="anytime", stopping=anytime.DEFAULTS | {"tolerance": t})
            for t in (0.1, 0.5, 0.05)
        ),
        *(
            written(stopping=TABLE | {"radii": radii})
            for radii in ([0.1, 0.5], [0.1, 0.3, 0.5], [0.0, 3.0], [0.0, 1.5])
        ),
        *(written(backend="foreign/onnx", n0=n0) for n0 in (100, 50)),
    ]

    assert re.fullmatch("a-e0.5-n1000-[a-z]+-[0-9a-f]{8}-a0.001", names[0])
    assert re.fullmatch("a-e0.5-n1000-none-[0-9a-f]{8}-two_class-a0.001", names[3])
    assert len({*names}) == len(names)
