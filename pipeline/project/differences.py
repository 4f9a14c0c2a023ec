"""Describes differences between params.yaml and the parameters that something was made with."""

from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.workflow.changes import find
from rrcm.analysis import entries
from rrcm.core.schema import finite, shown

FEW = 4  # differences that are listed individually
NAMED = 2  # stages that are listed individually


def differences(recorded: Mapping[str, Any], tree: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the differences between recorded sections and ``tree``, the contents of params.yaml.

    One string for each key, in dotted form: ``runs.tiny.sigma was 0.25, is now 0.26``.
    """
    changes: list[str] = []
    for section, then in recorded.items():
        now = find(tree, section)
        if now is None:
            changes.append(f"{section} is no longer there")
            continue
        before, after = (entries.flat(finite(node), section) for node in (then, now))
        for key in before | after:
            if key in before and key in after and before[key] == after[key]:
                continue
            was = shown(before[key]) if key in before else "not there"
            is_now = f"is now {shown(after[key])}" if key in after else "is no longer there"
            changes.append(f"{key} was {was}, {is_now}")
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
        sentences.append(line(", ".join(names), reasons, f"rrcm repro {' '.join(stages)}"))
    return sentences


def line(name: str, reasons: tuple[str, ...], command: str) -> str:
    """Return the line for something stale, with the command that makes it anew."""
    return f"stale: {name}: {listed(reasons)}; `{command}` makes it anew"
