"""Recipes are chosen by a rule that was declared before, and on held-out images."""

import pytest
from helpers import shipped

from benchmarks import choose
from benchmarks.choose import OTHERS, RATES, Candidate

SEARCHED = {"digits": "tiny-{}-s{:03.0f}", "fashion-mnist": "vit-{}-s{:03.0f}-seed0"}
PRESETS = {name: shipped(name) for name in SEARCHED}
CASES = [(p, method) for p in SEARCHED for method in OTHERS[PRESETS[p].data.name]]


@pytest.fixture
def tried(monkeypatch) -> list[Candidate]:
    """The candidates of a search in which the score is worst at 3e-3, and else always the same."""
    asked = []

    def score(whole, candidate):
        asked.append(candidate)
        return {"mean": 0.2 if candidate.rate == 3e-3 else 0.5}

    monkeypatch.setattr(choose, "score", score)
    return asked


@pytest.mark.parametrize("preset, method", CASES)
def test_every_method_has_as_many_candidates_and_the_first_of_equals_wins(preset, method, tried):
    whole, name = PRESETS[preset], SEARCHED[preset]
    constant, values = OTHERS[whole.data.name][method]
    rows = choose.search(whole, method, (constant, values))

    others = 2 * len(values) - 1  # the first sigma's first value is that of the rates
    rates = RATES[whole.data.name]
    assert len(rows) == len(tried) == len({*tried}) == len(rates) + others
    assert [c.rate for c in tried] == [*rates, *[rates[0]] * others]
    won = [c for c, row in zip(tried, rows, strict=True) if row["chosen"]]
    assert [(c.run, c.value) for c in won] == [
        (name.format(method, 100 * sigma), each[0]) for sigma, each in values.items()
    ]


@pytest.mark.parametrize("preset, method", CASES)
def test_the_preset_has_one_rate_a_method_and_nothing_that_was_no_candidate(preset, method):
    whole, name = PRESETS[preset], SEARCHED[preset]
    constant, values = OTHERS[whole.data.name][method]
    rates = set()
    for sigma, candidates in values.items():
        run = whole.runs[name.format(method, 100 * sigma)]
        optimizer = whole.recipes[run.recipe].optimizer
        rates.add(optimizer.lr)
        assert run.loss.get(constant, getattr(optimizer, constant, None)) in candidates
    assert len(rates) == 1 and rates <= {*RATES[whole.data.name]}
