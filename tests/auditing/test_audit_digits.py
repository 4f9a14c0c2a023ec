"""Tables of three significant digits, as most are published: what made them is found, too."""

import numpy as np
import pytest
from audit_tables import RULES, alarms, sampled, table

from benchmarks.audit import OUTCOMES, bad, published, simulate, tell, write_published
from rrcm.auditing import attainable_radii, infer, written
from rrcm.auditing.attainable_radii import AttainableRadii
from rrcm.auditing.audit import audit
from rrcm.certification import certify, tsv

FIRST, _, WRONG, _, _, ALARM = OUTCOMES


def field(path, *, n=100_000, alpha=0.001, sigma=0.5, images=500, seed=0):
    """Write a table with three significant digits, and return its certificates in full."""
    rng = np.random.default_rng(seed)
    found = simulate(rng, n=n, alpha=alpha, sigma=sigma, images=images)
    write_published(found, path)
    return found


def made(result):
    return [(one.n, one.alpha, one.sigma) for one in result.inferred]


def texts(result, level):
    return [one.text for one in result.findings if one.level == level]


def test_what_made_a_published_table_is_found():
    """The 31 largest and the 6 smallest radii of CIFAR-10 at sigma = 0.5 in github.com/locuslab/
    smoothing, data/certify/cifar10/resnet110/noise_0.50/test/sigma_0.50 (Cohen et al., 2019).
    """
    counts = {1.96: 9, 1.91: 5, 1.88: 4, 1.86: 1, 1.84: 1, 1.81: 2, 1.8: 2, 1.77: 2, 1.74: 1}
    counts |= {1.73: 1, 1.7: 3}
    counts |= {0.0011: 1, 0.00403: 1, 0.00429: 1, 0.00539: 1, 0.00592: 1, 0.00902: 1}
    radii = np.repeat([*counts], [*counts.values()])

    found = attainable_radii.infer(radii, written.units(radii))

    assert [(one.n, one.alpha, one.sigma) for one in found] == [(100_000, 0.01, 0.5)]


def shares(told):
    every = [outcomes for one in told for outcomes in one.values()]
    return {name: np.mean([name in outcomes for outcomes in every]) for name in OUTCOMES}


def test_most_tables_with_images_at_the_ceiling_tell_how_they_were_made():
    """Those of turns 11 and up once raised an alarm: wide rungs were taken for heaps."""
    found = shares([tell((0, turn, 1)) for turn in (*range(10), 11, 17, 42)])

    assert found[FIRST] >= 0.9 and found[WRONG] == 0 and found[ALARM] == 0


@pytest.mark.parametrize("n", [3_000, 30_000, 70_000])
def test_an_unusual_n_is_not_taken_for_a_usual_one(tmp_path, n):
    """Unless somebody states it."""
    field(tmp_path / "a.tsv", n=n)

    assert made(audit(tmp_path / "a.tsv")) == []
    assert made(audit(tmp_path / "a.tsv", n=n)) == [(n, 0.001, 0.5)]


@pytest.mark.parametrize("rule", RULES)
def test_no_stopping_rule_raises_an_alarm_with_three_digits(tmp_path, rule):
    """Radii that were rounded down before, as ours, are not taken for rounded up (seed 2)."""
    for seed in (0, 2):
        definition, rows = sampled(rule, images=120, seed=seed)
        found = certify.certify(definition, rows, certificates=["cohen"], alpha=0.001)
        write_published(found, tmp_path / "a.tsv")
        result = audit(tmp_path / "a.tsv")

        assert not bad(result), str(result)
        assert made(result) in ([], [(1_000, 0.001, 0.5)])


# Faults.


def test_a_radius_just_above_the_heap_is_found(tmp_path):
    found = field(tmp_path / "a.tsv")
    top = int(found["radius"].argmax())
    write_published(
        found.assign(radius=found["radius"] + 0.01 * (found.index == top)), tmp_path / "b"
    )

    result = audit(tmp_path / "b")

    assert ("error", (top + 2,)) in [(level, lines) for level, lines, _ in alarms(result)]


def test_radii_that_may_be_rounded_up_are_only_noted_until_sigma_is_stated(tmp_path):
    """All radii of sigma = 0.25, rounded up, are also those of 0.25015, rounded to the nearest."""
    found = field(tmp_path / "a.tsv", n=10_000, sigma=0.25, images=100)
    write_published(found.assign(radius=np.ceil(found["radius"] * 1e3) / 1e3), tmp_path / "b.tsv")

    plain, stated = audit(tmp_path / "b.tsv"), audit(tmp_path / "b.tsv", sigma=0.25)

    assert any("a stated sigma would tell" in text for text in texts(plain, "note"))
    assert not bad(plain) and "radii were rounded up" in stated.verdict


@pytest.mark.parametrize(
    ("written_as", "level"), [("1.91", "warning"), ("1.906", "warning"), ("1.92", "error")]
)
def test_a_radius_that_was_rounded_to_the_nearest_is_no_reason_for_distrust(
    tmp_path, written_as, level
):
    """Unanimous votes give 1.905728: 1.906 is the nearest of three decimals; all is stated."""
    path = tmp_path / "a.tsv"
    rows = (f"{idx}\t3\t3\t{radius}\t1\t" for idx, radius in enumerate((written_as, 0.5, 0.25)))
    path.write_text("\n".join(["\t".join(tsv.COLUMNS), *rows]) + "\n")

    result = audit(path, n=100_000, alpha=0.001, sigma=0.5)

    text = "above 1.90572" if level == "error" else "radii were rounded to the nearest"
    assert [one.level for one in result.findings if text in one.text] == [level]
    assert len(result.inferred) == result.trusted == (level != "error")


# Heaps.


def test_a_heap_is_where_many_radii_are_alike_next_to_the_top():
    def heap(*radii):
        return written.heap(np.array(radii), np.full(len(radii), 0.01))

    spread = np.arange(1.0, 1.9, 0.01)

    assert heap(*spread, *[1.96] * 5) == 1.96
    assert heap(*spread, *[1.96] * 5, 1.97) == 1.96  # one above, by mistake
    assert heap(*spread, *[1.96] * 4) is None
    assert heap(*spread, *[1.5] * 20) is None  # too many above
    assert heap(*np.repeat(spread, 5)) is None  # as many below
    assert heap() is None


@pytest.mark.parametrize(("count", "found"), [(5, 0), (20, 1)])
def test_radii_that_may_be_alike_by_chance_are_no_heap_of_another_table(count, found):
    """1.905 is the largest of sigma = 0.5; four others are at each fifth place around."""
    others = np.repeat(np.arange(1.855, 1.956, 0.005).round(3), 2)
    values = np.array([*others, *[1.905] * count])
    candidate = AttainableRadii(n=100_000, alpha=0.001, sigma=1.0, rounding="down")
    rows = np.arange(len(values))

    assert len(infer._heaped(candidate, values, np.full(len(values), 1e-3), rows)) == found


def test_how_few_radii_it_rests_on_is_said(tmp_path):
    rng = np.random.default_rng(0)
    found = published(rng, n=100_000, alpha=0.001, sigma=0.5, images=1_000)
    write_published(found, tmp_path / "a.tsv")

    assert any("this rests on" in text for text in texts(audit(tmp_path / "a.tsv"), "note"))


# Alpha that a stopping rule divides.


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("grid", "alpha = 0.0005: with the stopping rule grid, half of alpha = 0.001 is kept"),
        ("anytime", None),
        ("none", None),
    ],
)
def test_the_alpha_of_our_table_is_that_of_all_its_looks(tmp_path, rule, words):
    definition, rows = sampled(rule, images=200)
    found = certify.certify(definition, rows, certificates=["cohen"], alpha=0.001)
    certify.write(found, tmp_path / "a.csv")

    result = audit(tmp_path / "a.csv", alpha=0.001)

    assert [float(f"{one.alpha:.4g}") for one in result.inferred] == [0.001]
    said = [text for text in texts(result, "note") if "bounds hold at alpha" in text]
    assert said == [] if words is None else words in said[0]
    assert audit(tmp_path / "a.csv", alpha=0.0005).trusted is False


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_an_alpha_that_may_be_half_of_another_is_called_so(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    (certify if kind == "csv" else tsv).write(table(alpha=0.0005), path)

    plain, stated = audit(path), audit(path, alpha=0.001)

    assert [one.alpha for one in plain.inferred] == [0.0005]
    for result in (plain, stated):
        assert any("may be half of 0.001" in text for text in texts(result, "note"))
        assert not bad(result) and result.trusted
