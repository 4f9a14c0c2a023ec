"""Entries are told apart by whatever they differ in, and nothing is counted without labels."""

import dataclasses

import pytest
from builders import certificates, random_votes, refused
from helpers import MINI

from rrcm.analysis import entries, report
from rrcm.analysis.entries import Entry
from rrcm.analysis.presentation import tables
from rrcm.config.certification import Eval
from rrcm.core.errors import DataError

TABLE = certificates([0, 1, -1], [0.5, 0.2, 0.0])
PLAIN = Entry(name="a", model="tiny", method="rrcm", sigma=0.5, table=TABLE, alpha=0.001)


def variant(**changes):
    """Params in which the first run has a brother that differs in ``changes``."""
    first, run = next(iter(MINI.runs.items()))
    sigma = changes.pop("eval_sigma", 0.5)
    return dataclasses.replace(
        MINI,
        models=MINI.models | {"small": MINI.models["tiny"]},
        runs={first: run, "other": dataclasses.replace(run, **changes)},
        evals={
            "first-e": Eval(run=first, architecture="vit", sigma=0.5),
            "other-e": Eval(run="other", architecture="vit", sigma=sigma),
        },
    )


def made(params):
    return entries.entries(params, {name: TABLE for name in params.evals}, {})


def test_an_image_without_a_label_is_neither_right_nor_wrong_beside_labelled_ones():
    """Accuracy is over the labelled images, and its title says so."""
    some = certificates([0, -1, 1, -1], [0.5, 0.2, 0.4, 0.0])
    some.loc[2:, ["label", "correct"]] = -1, 0
    partly = dataclasses.replace(PLAIN, table=some)

    shown = tables.text([partly], radii=[0.3], confidence=0.95)

    assert partly.judged["idx"].tolist() == [0, 1]
    entries.require_alike([partly, PLAIN])
    assert "labelled" not in tables.title([PLAIN], confidence=0.95)
    assert "accuracy of the labelled images (2 of 4), %" in shown and "50.0 [" in shown
    assert report.metrics([partly], radii=[0.3])["a"] == {"acr": 0.25, "abstain": 0.5, "r030": 0.5}
    assert tables.accuracy([partly], radii=[0.3], confidence=0.95)["images"].tolist() == [2]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"method": "gaussian"}, ["rrcm", "gaussian"]),
        ({"seed": 1}, ["rrcm seed 0", "rrcm seed 1"]),
        ({"model": "small"}, ["small rrcm", "tiny rrcm"]),
        ({"sigma": 0.25}, ["rrcm (trained at σ = 0.25)", "rrcm"]),
        ({"eval_sigma": 0.25}, ["rrcm (trained at σ = 0.5)", "rrcm"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_labels_tell_entries_apart(changes, expected):
    found = made(variant(**changes))

    assert [entries.label(entry, found) for entry in found] == expected


def test_twins_have_their_names_and_what_is_stale_is_marked():
    first, other = made(variant(recipe="scratch"))
    found = [first, dataclasses.replace(other, stale=("a reason",))]

    assert [entries.label(e, found) for e in found] == ["rrcm (first-e)", "rrcm (other-e) (stale)"]


def test_entries_are_what_params_evaluates_and_their_votes_where_there_are():
    params, votes = variant(method="gaussian"), random_votes(0)

    found = entries.entries(params, {n: TABLE for n in params.evals}, {"other-e": votes})

    assert [entry.name for entry in found] == [*params.evals]
    assert [entry.votes for entry in found] == [None, votes]
    assert {(e.model, e.sigma, e.sigma_train, e.alpha, e.certificate) for e in found} == {
        ("tiny", 0.5, 0.5, 0.001, "cohen")
    }


def test_a_classifier_from_elsewhere_is_called_by_its_file():
    foreign = Entry(name="net", model="net", method="", sigma=None, table=TABLE, alpha=None)

    assert entries.label(foreign, [foreign]) == "net" and entries.sigma(foreign) == "?"
    assert entries.label(foreign, [foreign, PLAIN]) == "net (α unknown)"
    assert entries.label(PLAIN, [foreign, PLAIN]) == "tiny rrcm (α = 0.001)"
    assert foreign.group[1] > PLAIN.group[1]


def test_a_table_is_of_one_split_and_says_which():
    """Where recipes were compared, the best of them looks better than it is."""
    test, choice = (
        dataclasses.replace(PLAIN, name=split[0], table=TABLE.assign(split=split))
        for split in ("test", "choice")
    )

    assert [entry.split for entry in (test, choice, PLAIN)] == ["test", "choice", ""]
    title = tables.title([PLAIN, choice], confidence=0.95)
    assert title == "certified accuracy of the choice split, % [95 % Wilson interval]"
    entries.require_alike([test, PLAIN, test])
    with refused(DataError, "c is of the choice split and t is of the test split", "apart"):
        entries.require_alike([test, PLAIN, choice])
