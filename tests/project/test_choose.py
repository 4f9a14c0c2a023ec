"""The digits' recipes are chosen by a rule that was declared before, and on held-out images."""

import dataclasses

import pytest
from workspace import ROOT

from benchmarks import choose
from benchmarks.choose import OTHERS, RATES, Candidate
from rrcm.config import params

WHOLE = params.load(ROOT / "presets/digits.yaml")


@pytest.fixture
def tried(monkeypatch) -> list[Candidate]:
    """The candidates of a search in which the score is worst at 3e-3, and else always the same."""
    asked = []

    def score(whole, candidate):
        asked.append(candidate)
        return {"mean": 0.2 if candidate.rate == 3e-3 else 0.5}

    monkeypatch.setattr(choose, "score", score)
    return asked


@pytest.mark.parametrize("method", OTHERS)
def test_every_method_has_as_many_candidates_and_the_first_of_equals_wins(method, tried):
    rows = choose.search(WHOLE, method)

    assert len(rows) == len(tried) == len({*tried}) == 6
    assert [c.rate for c in tried] == [*RATES, RATES[0], RATES[0], RATES[0]]
    won = [c for c, row in zip(tried, rows, strict=True) if row["chosen"]]
    assert [(c.run, c.value) for c in won] == [
        (f"tiny-{method}-s{round(100 * sigma):03d}", values[0])
        for sigma, values in OTHERS[method][1].items()
    ]


@pytest.mark.parametrize("method", OTHERS)
def test_a_candidate_differs_from_its_run_in_two_constants(method):
    name, (constant, _) = f"tiny-{method}-s050", OTHERS[method]
    run, recipe = Candidate(run=name, rate=0.5, constant=constant, value=0.25).settings(WHOLE)
    ours = WHOLE.runs[name]
    plain = WHOLE.recipes[ours.recipe]

    of_loss = constant in ours.loss
    assert run == dataclasses.replace(ours, loss=ours.loss | ({"lbd": 0.25} if of_loss else {}))
    changed = {"lr": 0.5} | ({} if of_loss else {"weight_decay": 0.25})
    optimizer = dataclasses.replace(plain.optimizer, **changed)
    assert recipe == dataclasses.replace(plain, optimizer=optimizer)


@pytest.mark.parametrize("method", OTHERS)
def test_the_preset_has_one_rate_a_method_and_nothing_that_was_no_candidate(method):
    constant, values = OTHERS[method]
    rates = set()
    for sigma, candidates in values.items():
        run = WHOLE.runs[f"tiny-{method}-s{round(100 * sigma):03d}"]
        optimizer = WHOLE.recipes[run.recipe].optimizer
        rates.add(optimizer.lr)
        assert run.loss.get(constant, getattr(optimizer, constant, None)) in candidates
    assert len(rates) == 1 and rates <= {*RATES}
