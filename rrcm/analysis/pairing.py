"""Which entries may be compared in pairs, and what the tests of a report allow to say of them."""

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pandas as pd

from rrcm.analysis import entries
from rrcm.analysis.entries import Entry
from rrcm.analysis.estimation import paired, statistics
from rrcm.certification.votes.counts import ABSTAIN

MANY = 4  # entries up to which all pairs are compared
WHOLE = "1/1"  # the share whose votes are of all pictures of their digest


def pairs(found: list[Entry]) -> list[tuple[Entry, Entry]]:
    """Pairs that share model, sigma and images; among more than `MANY`, the first with each."""
    sizes = Counter(e.group for e in found)
    firsts = {e.group: e for e in reversed(found)}
    return [
        (a, b)
        for a, b in itertools.combinations(found, 2)
        if a.group == b.group and same_images(a, b)
        if sizes[a.group] <= MANY or a is firsts[a.group]
    ]


def on_shared(a: Entry, b: Entry) -> tuple[Entry, Entry]:
    """Both on the images of the one that has fewer; the other's further images are left out."""
    fewer, more = sorted((a, b), key=lambda entry: len(entry.table))
    shared = more.table[more.table["idx"].isin(fewer.table["idx"])].reset_index(drop=True)
    cut = replace(more, table=shared)
    return (cut, b) if more is a else (a, cut)


def same_images(a: Entry, b: Entry) -> bool:
    """Whether two entries have the same labels and, unless recorded otherwise, pictures."""
    return paired.same_images(a.table, b.table) and same_pictures(a, b) is not False


def same_pictures(a: Entry, b: Entry) -> bool | None:
    """Whether entries of equal ``idx`` and ``label`` have equal pictures; None if it is unknown.

    Votes record a SHA-256 of pictures and labels. Two that differ mean other pictures only if they
    are of the very rows of both tables: not of more pictures, as that of a share or of another
    subset, nor of labels that were replaced. Without votes of both, names of files that differ do.
    """
    if a.votes is None or b.votes is None:
        return None if same_files(a, b) else False
    one, other = a.votes[0], b.votes[0]
    if one.pixels == other.pixels:
        return True
    whole = one.shard == other.shard == WHOLE and one.subset == other.subset
    return False if whole and not (a.relabelled or b.relabelled) else None


def same_files(a: Entry, b: Entry) -> bool:
    """Whether the pictures of two entries have the same names of files, or one has none."""
    named = "file" in a.table and "file" in b.table
    return not named or a.table["file"].tolist() == b.table["file"].tolist()


def differing(a: Entry, b: Entry) -> dict[str, str]:
    """The settings of certification in which two entries differ, by name, as text."""
    first, second = _settings(a), _settings(b)
    return {
        name: f"{name} {_text(first[name])} and {_text(second[name])}"
        for name in first
        if None not in (first[name], second[name]) and first[name] != second[name]
    }


def assumed(a: Entry, b: Entry) -> list[str]:
    """What is not recorded of both, and so is assumed to be the same."""
    return ["pictures"] * (same_pictures(a, b) is None) + _unrecorded(a, b)


def condition(found: list[Entry]) -> str:
    """What all entries must have the same of, as it is not recorded of the first and another."""
    first, *others = found
    unknown = dict.fromkeys(name for other in others for name in assumed(first, other))
    drawn = ", and no drawing stopped early" * (not all(one.records_stops for one in found))
    return f"{', '.join(unknown)}{drawn}" if unknown else ""


def _unrecorded(a: Entry, b: Entry) -> list[str]:
    first, second = _settings(a), _settings(b)
    return [name for name in first if None in (first[name], second[name])]


def notes(found: list[Entry]) -> list[str]:
    """Sentences on pairs that are compared by assumption, or not because of their pictures."""
    said = [
        f"{a.name} and {b.name} have other pictures, and are not compared in pairs."
        for a, b in itertools.combinations(found, 2)
        if a.group == b.group and paired.same_images(a.table, b.table) and not same_images(a, b)
    ]
    unknown = dict.fromkeys(name for a, b in pairs(found) for name in assumed(a, b))
    if unknown:
        said.append(
            f"Not recorded of both, and so assumed to be the same in pairs: {', '.join(unknown)}."
        )
    return said


def unknown(entry: Entry, radius: float) -> np.ndarray:
    """Which `judged` images of an entry more draws might certify at ``radius``, bool [N].

    They are not certified so far, drawing stopped before that was decided, and the answer is not a
    wrong one, which more draws do not change.
    """
    table = entry.judged
    if not entry.undecided([radius])[0]:
        return np.zeros(len(table), dtype=bool)
    wrong = (table["correct"] == 0) & (table["predict"] != ABSTAIN)
    return (entry.early(table) & ~wrong).to_numpy() & ~statistics.certified(table, radius)


def of_images(found: list[Entry], compared: pd.DataFrame, *, level: float) -> list[str]:
    """A sentence for the first entry of each sigma and every other one; see `tables.comparisons`.

    They are about these trained classifiers. Radii at which no image differs are left out,
    and so are pairs that are undecided at all others, or of which not all settings of certification
    are recorded.
    """
    compared = compared[compared["only_first"] + compared["only_second"] > 0]
    names = {entry.name: entry for entry in found}
    firsts = {entry.group: entry for entry in reversed(found)}
    return [
        f"σ = {entries.sigma(a)}: {conclusion(a, b, part, labels=labels, level=level)}"
        for (first, second), part in compared.groupby(["first", "second"], sort=False)
        for a, b in [(names[str(first)], names[str(second)])]
        for labels in [(entries.label(a, found), entries.label(b, found))]
        if a is firsts[a.group] and (differing(a, b) or not _unrecorded(a, b))
        if not part["undecided"].all()
    ]


def conclusion(
    a: Entry, b: Entry, tests: pd.DataFrame, *, labels: tuple[str, str], level: float
) -> str:
    """What ``tests`` of two entries say about them: nothing, if they were certified otherwise.

    At least one of them is decided. They say it on `condition`.
    """
    if other := differing(a, b):
        return (
            f"{' and '.join(labels)} were certified with other settings "
            f"({'; '.join(other.values())}), which may be why they differ."
        )
    said = _sentence(*labels, tests, level=level, tell=f"these {len(a.judged)} images")
    unknown = condition([a, b])
    return f"If both have the same {unknown}: {said}" if unknown else said


def of_seeds(compared: pd.DataFrame, *, level: float) -> list[str]:
    """A sentence for each pair of methods; see `repetitions.differences`.

    They are about trainings with other seeds, too.
    """
    return [
        f"σ = {sigma}: "
        + _sentence(str(a), str(b), part, level=level, tell="these seeds and images")
        for (sigma, a, b), part in compared.groupby(["sigma", "first", "second"], sort=False)
        if not part["undecided"].all()
    ]


def _sentence(a: str, b: str, tests: pd.DataFrame, *, level: float, tell: str) -> str:
    """Claims from ``difference`` and ``p_holm`` at each ``radius``.

    Chance alone leads to a claim, at any of the radii, with at most the level's probability (Holm).
    Of undecided radii nothing is said.
    """
    where_decided = ~tests["undecided"].astype(bool)
    everywhere, tests = where_decided.all(), tests[where_decided]
    clear = tests["p_holm"] <= level
    ahead, behind = clear & (tests["difference"] > 0), clear & (tests["difference"] < 0)
    parts = [
        f"{better} certifies more images than {worse} at r = {radii(tests.loc[where, 'radius'])}"
        for better, worse, where in ((a, b, ahead), (b, a, behind))
        if where.any()
    ]
    if not parts:
        anywhere = "any radius" if everywhere else f"r = {radii(tests['radius'])}"
        return f"{tell} do not tell {a} and {b} apart at {anywhere}."
    left = radii(tests.loc[~ahead & ~behind, "radius"])
    rest = f"; {tell} do not tell them apart at r = {left}" if left else ""
    return f"{', '.join(parts)}{rest}."


def radii(values: Iterable[float]) -> str:
    """Radii as text."""
    return ", ".join(f"{value:g}" for value in values)


def _settings(entry: Entry) -> dict[str, object]:
    """All that decides what is certified of given pictures and a network; None is unknown."""
    known: dict[str, object] = {"σ": entry.sigma, "α": entry.alpha}
    if entry.votes is None:
        return known | dict.fromkeys(("n₀", "n", "rule", "certificate", "noise"))
    header = entry.votes[0]
    rule = [header.stop, *(f"{key} = {value}" for key, value in header.stopping.items())]
    if not header.rule().fixed:  # where it stops depends on what it is laid out for
        rule.append(f"for {header.certificate} at α = {header.alpha}")
    rule += [f"budget {header.budget:g} s"] * bool(header.budget)
    return known | {
        "n₀": header.n0,
        "n": header.n,
        "rule": ", ".join(rule),
        "certificate": entry.certificate,
        "noise": header.noise,
    }


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
