"""Describes differences between params.yaml and the parameters that something was made with."""

from collections.abc import Iterable, Mapping
from typing import Any

from rrcm.analysis import entries
from rrcm.core.schema import finite

FEW = 4  # differences that are listed individually
NAMED = 2  # stages that are listed individually
SHOWN = 60  # characters of a value


def differences(recorded: Mapping[str, Any], tree: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the differences between recorded sections and ``tree``, the contents of params.yaml.

    One string for each key, in dotted form: ``runs.tiny.sigma was 0.25, is now 0.26``.
    """
    changes: list[str] = []
    for section, was in recorded.items():
        now = _part(tree, section)
        if now is None:
            changes.append(f"{section} is no longer there")
            continue
        before, after = (entries.flat(finite(node), section) for node in (was, now))
        for key in before | after:
            if key not in after:
                changes.append(f"{key} was {_value(before[key])}, is no longer there")
            elif key not in before:
                changes.append(f"{key} was not there, is now {_value(after[key])}")
            elif before[key] != after[key]:
                changes.append(f"{key} was {_value(before[key])}, is now {_value(after[key])}")
    return tuple(changes)


def listed(reasons: tuple[str, ...]) -> str:
    """Return the first few reasons in one line."""
    more = f"; and {len(reasons) - FEW} more" if len(reasons) > FEW else ""
    return "; ".join(reasons[:FEW]) + more


def lines(stale: Iterable[tuple[str, tuple[str, ...]]]) -> list[str]:
    """Return one line for all evaluations that are stale for the same reasons, with the way out."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, reasons in stale:
        if reasons:
            alike.setdefault(reasons, []).append(name)
    sentences = []
    for reasons, names in alike.items():
        stages = [f"certify@{name}" for name in names] if len(names) <= NAMED else ["certify"]
        them = "it" if len(names) == 1 else "them"
        sentences.append(
            line(", ".join(names), reasons, f"`rrcm repro {' '.join(stages)}`", them=them)
        )
    return sentences


def line(name: str, reasons: tuple[str, ...], way: str, *, them: str = "it") -> str:
    """Return the line for something stale; ``way`` is the command that remakes it."""
    return f"stale: {name}: {listed(reasons)}; {way} makes {them} anew"


def _part(tree: Any, section: str) -> Any:
    for key in section.split("."):
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
