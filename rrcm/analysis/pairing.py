"""Which entries may be compared in pairs, and what their difference can be due to."""

import itertools
from collections import Counter

from rrcm.analysis.entries import Entry
from rrcm.analysis.estimation import paired

MANY = 4  # entries up to which all pairs are compared
WHOLE = "1/1"  # the shard whose votes are of all pictures of their digest


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


def same_images(a: Entry, b: Entry) -> bool:
    """Whether two entries have the same labels and, unless recorded otherwise, pictures."""
    return paired.same_images(a.table, b.table) and same_pictures(a, b) is not False


def same_pictures(a: Entry, b: Entry) -> bool | None:
    """Whether entries of equal ``idx`` and ``label`` have equal pictures; None if it is unknown.

    Votes record a SHA-256 of pictures and labels. Two that differ mean other pictures only if they
    are of the very rows of both tables: not of more pictures, as that of a shard, nor of labels
    that were replaced.
    """
    if a.votes is None or b.votes is None:
        return None
    one, other = a.votes[0], b.votes[0]
    if one.pixels == other.pixels:
        return True
    comparable = one.shard == other.shard == WHOLE and not (a.relabelled or b.relabelled)
    return False if comparable else None


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
    first, second = _settings(a), _settings(b)
    pictures = ["pictures"] * (same_pictures(a, b) is None)
    return pictures + [name for name in first if None in (first[name], second[name])]


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
