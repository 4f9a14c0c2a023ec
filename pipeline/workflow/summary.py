"""Summarizes the results of a run of the graph, as tables and in one line."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.workflow.stage_run import Outcome

REASONS = 2  # failures that the one line explains; the table has all
PROVENANCE = "provenance/"  # has the seconds of a stage, and so differs from run to run


GOOD = (Outcome.RAN, Outcome.RESTORED, Outcome.CACHED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The result of a stage; ``note`` has the reason, or the new outputs."""

    stage: str
    outcome: Outcome
    seconds: float = 0.0
    tries: int = 0
    note: str = ""


def rows(results: Sequence[Result]) -> list[dict[str, str]]:
    """The results as a table with a row for each stage."""
    return [
        {
            "stage": result.stage,
            "state": str(result.outcome),
            "seconds": f"{result.seconds:.1f}" if result.seconds else "",
            "tries": str(result.tries or ""),
            "note": result.note.partition("\n")[0],
        }
        for result in results
    ]


def text(results: Sequence[Result]) -> str:
    """`rows` for a terminal."""
    shown = rows(results)
    table = [[*shown[0]], *([*row.values()] for row in shown)]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = ["  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)) for row in table]
    return "\n".join(line.rstrip() for line in lines)


def sentence(results: Sequence[Result]) -> str:
    """The results in one line: the failures and their reasons, or counts of outcomes."""
    counts = Counter(result.outcome for result in results)
    done = ", ".join(f"{counts[how]} {how}" for how in Outcome if counts[how])
    if failed := [result for result in results if result.outcome == Outcome.FAILED]:
        notes = [" ".join(result.note.split("\n")[:2]) for result in failed[:REASONS]]
        others = ", ".join(result.stage for result in failed[REASONS:])
        why = "; ".join(notes) + (f"; and {others}" if others else "")
        return f"failed: {why} (of {_count(results)}: {done})"
    return f"{_count(results)}: {done}" if results else "dvc.yaml has no stages"


def _count(results: Sequence[Result]) -> str:
    return f"{len(results)} stage{'s'[: len(results) != 1]}"


def news(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The outputs of an entry of dvc.lock that are new or changed since another of that stage."""
    known = {out["path"]: _content(out) for out in before.get("outs", [])}
    return [
        out["path"]
        for out in after.get("outs", [])
        if not out["path"].startswith(PROVENANCE) and known.get(out["path"]) != _content(out)
    ]


def same_inputs(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether two entries of dvc.lock have the same command, parameters and dependencies."""
    return all(before.get(key) == after.get(key) for key in ("cmd", "params", "deps"))


def _content(out: Mapping[str, Any]) -> Any:
    return out.get(str(out.get("hash", "md5")))
