"""The best of several on the images that chose it is too high; elsewhere it is not."""

from pathlib import Path

import numpy as np
import pytest
import typer.testing
from builders import certificates, random_votes, refused

from rrcm.analysis.estimation import selection
from rrcm.certification import certify, tsv
from rrcm.certification.votes import records
from rrcm.cli import main as cli
from rrcm.cli.commands import best, tables
from rrcm.core.errors import DataError


def drawn(rng: np.random.Generator, shares: list[float], images: int = 100) -> np.ndarray:
    """Classifiers that certify new images with these probabilities."""
    return (rng.random((len(shares), images)) < np.array(shares)[:, None]).astype(float)


@pytest.mark.parametrize("shares", [[0.6] * 30, [0.5] * 20 + [0.55] * 5])
def test_what_is_chosen_is_unbiased_elsewhere_and_too_high_where_it_was_chosen(shares):
    """Of equal recipes it is their share; else that of the one that half of the images choose."""
    rng = np.random.default_rng(0)
    found = [selection.best(drawn(rng, shares), halves=100, seed=i) for i in range(400)]
    fresh = [
        shares[drawn(rng, shares, images=50).sum(axis=1).argmax()] for _ in range(4_000)
    ]  # the first of equals is one of equals

    naive, elsewhere = ([getattr(one, name) for one in found] for name in ("mean", "elsewhere"))
    error = np.std(elsewhere) / 20
    truth = np.mean(fresh) if len({*shares}) > 1 else shares[0]
    assert abs(np.mean(elsewhere) - truth) < 3.5 * error + 0.002 * (len({*shares}) > 1)
    assert np.mean(naive) > max(shares) + 0.04  # the control: the published number fails
    assert np.mean([one.there for one in found]) > np.mean(naive)


def test_two_halves_of_two_images_are_all_that_there_are():
    """Closed form: one image chooses, the other is looked at; classifiers that tie share."""
    found = selection.best(np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]), halves=4_000)

    assert (found.index, found.mean) == (0, 0.5)
    assert found.there == pytest.approx(0.5, abs=0.03)  # 1 by the first image, 0 by the second
    assert found.elsewhere == pytest.approx(1 / 3, abs=0.02)  # 0, or a third of 2 classifiers' 1
    with pytest.raises(ValueError, match="two images"):
        selection.best(np.ones((3, 1)))


def test_the_least_share_of_the_best_of_many_fails_as_rarely_as_is_said():
    """Not so the bound of one classifier alone, which fails for the best of 50 in most tables."""
    rng, images, wrong = np.random.default_rng(1), 200, np.zeros(2)
    for _ in range(500):
        most = int(drawn(rng, [0.7] * 50, images).sum(axis=1).max())
        bounds = [selection.least(most, images, tried=m, confidence=0.9) for m in (50, 1)]
        wrong += np.array(bounds) > 0.7

    assert wrong[0] <= 500 * 0.1 and wrong[1] > 500 * 0.5
    assert selection.least(0, 10, tried=3, confidence=0.9) == 0.0


def test_the_command_names_the_best_and_corrects_it(tmp_path):
    rng, names = np.random.default_rng(0), [f"{tmp_path}/recipe{i}/sigma_0.25" for i in range(40)]
    for name in names:
        right = rng.random(60) < 0.5
        (tmp_path / name).parent.mkdir()
        table = certificates([0 if one else -1 for one in right], [0.4 * one for one in right])
        tsv.write(table.assign(label=0), tmp_path / name)

    run = typer.testing.CliRunner().invoke(
        cli.app, ["compare", "--best", *names, "--radii", "0,0.25"]
    )

    assert run.exit_code == 0, run.output
    [line] = [one for one in run.output.splitlines() if one.lstrip().startswith("r = 0.25")]
    *_, name, chosen, elsewhere, excess, least = line.split()
    assert name.startswith("recipe") and "/" not in name
    assert best.told_apart(["/a/x.csv", "b/x.csv"]) == ["/a", "b"]
    assert float(chosen) > 60 and 45 < float(elsewhere) < 57 and float(least) < 50
    assert float(excess) == pytest.approx(float(chosen) - float(elsewhere), abs=0.2)
    for arguments in (names[:3], ["--best", names[0]]):
        refused = typer.testing.CliRunner().invoke(cli.app, ["compare", *arguments])
        assert refused.exit_code and "classifiers" in str(refused.exception)


def test_nothing_is_chosen_where_drawing_stopped_before_it_was_decided(tmp_path):
    """The better one may have stopped sooner, and look worse."""
    stopped = {"stop": "spending", "stopping": {"radii": [0.0, 0.1], "beta": 0.1}}
    found = {}
    for seed in (0, 1):
        records.write(tmp_path / f"{seed}.jsonl", *random_votes(seed, images=30, n=500, **stopped))
        found[str(seed)] = tables.read(tmp_path / f"{seed}.jsonl")

    said = best.best(found, radii="0,0.05,0.1")

    assert "The best by r = 0.05 and ACR is not known, as drawing may stop early" in said
    rows = [" ".join(line.split()[:3]) for line in said.splitlines()]
    assert [row for row in rows if row.startswith(("r =", "ACR"))] == ["r = 0", "r = 0.1"]
    with refused(DataError, "drawing stopped before r = 0.05 was decided; name others by --radii"):
        best.best(found, radii="0.05")
    certify.write(found["0"].table, tmp_path / "0.csv")
    table = tables.read(tmp_path / "0.csv")
    with refused(DataError, "b: drawing stopped early", "give its votes (.jsonl)"):
        best.best({"a": found["1"], "b": table}, radii="0")


def test_other_settings_of_the_best_are_named(tmp_path):
    """A laxer alpha certifies more of the same votes."""
    for alpha in (0.001, 0.05):
        votes = random_votes(0, images=30, n=500, alpha=alpha)
        records.write(tmp_path / f"{alpha}.jsonl", *votes)
    names = [f"{tmp_path}/{alpha}.jsonl" for alpha in (0.001, 0.05)]

    said = [
        best.best({name: tables.read(Path(name)) for name in chosen}, radii="0,0.1")
        for chosen in (names, [names[0], names[0].replace("0.001", "./0.001")])
    ]

    assert "other settings, which may be why" in said[0] and "α 0.001 and 0.05" in said[0]
    assert "other settings" not in said[1] and "only if all have" not in said[1]
    for name in names:
        tsv.write(tables.read(Path(name)).table, Path(name).with_suffix(".tsv"))
    files = [Path(name).with_suffix(".tsv") for name in names]
    unknown = best.best({str(path): tables.read(path) for path in files}, radii="0,0.1")
    words = (
        "only if all have the same pictures, σ, α, n₀, n, rule, certificate, noise, and no drawing"
    )
    assert words in unknown
