"""``rrcm report`` without files, and evaluations by name: the results of params.yaml."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.project import differences
from pipeline.project.patterns import matching
from pipeline.project.stale import PAGE, Present
from pipeline.workflow import git
from pipeline.workflow.lockfile import LOCKFILE
from rrcm.analysis import published, report
from rrcm.analysis.entries import Entry
from rrcm.analysis.presentation import tables
from rrcm.config.sections import PARAMS
from rrcm.core.errors import DataError
from rrcm.core.registry import suggest


def overview(only: Sequence[str] = (), *, out: Path | None = None) -> str:
    """Return the certified-accuracy table of params.yaml's evaluations, and the page's path.

    Rows are described by their records; lines below the table name those that are stale, and those
    whose certificates are not here. With patterns ``only``, of the evaluations that match one. The
    page is that of the graph; or it is written to ``out``, of all of them, with the commit.
    """
    present = Present()
    params = present.params
    names = matching(params.evals, only, kind="evaluation")
    here = [name for name in names if Path(f"certificates/{name}.csv").exists()]
    missing = [name for name in names if name not in here]
    ways = "`rrcm repro` makes what is missing, or `rrcm pull` fetches it"
    if not here or (missing and out):
        raise DataError(f"certificates/{missing[0]}.csv is not here; {ways}")
    page = out / PAGE.name if out else None if only or missing or not PAGE.exists() else PAGE
    evaluations = present.evaluations(here)
    shown: dict[str, Any] = {"radii": params.report.radii, "confidence": params.report.confidence}
    lines = differences.lines((entry.name, entry.stale) for entry in evaluations)
    if out:
        report.write(
            evaluations,
            out,
            subject=f"{params.data.name}, {evaluations[0].split} split · certificate: "
            f"{evaluations[0].certificate}",
            published=published.read(Path(f"presets/published/{params.data.name}.csv")),
            recorded=recorded(),
            **shown,
        )
    elif page and (changed := present.page()):
        lines.append(differences.line(str(PAGE), changed, "rrcm repro report"))
    if missing:
        lines.append(f"not here: {differences.listed(tuple(missing))}; {ways}")
    text = tables.text(evaluations, **shown)
    return "\n".join(
        [f"{text}\n" if page else text, *lines, *([f"the report: {page}"] * bool(page))]
    )


def recorded() -> str:
    """Return the commit and the date of the results, in words; empty outside of git.

    It is the last commit that changed dvc.lock, which has the hashes of all results.
    """
    last = git.attempt("log", "-1", "--format=%h %cs", "--", str(LOCKFILE))
    if not last:
        return ""
    commit, date = last.split()
    if git.run("status", "--porcelain", "--", str(LOCKFILE)):
        return f"These results are not committed: {LOCKFILE} differs from that of {commit}, {date}."
    return f"These results are those of commit {commit}, {date}, the last that changed {LOCKFILE}."


def evaluation(name: str) -> Entry:
    """Return the certificates of an evaluation, described by their record.

    Raises:
        RrcmError: There is no such evaluation, or its certificates or votes are not here.
    """
    present = Present() if PARAMS.exists() else None
    if present is None or name not in present.params.evals:
        raise DataError(f"{name}: neither a file nor {_unknown(name, present)}")
    certificates, drawn = Path(f"certificates/{name}.csv"), Path(f"votes/{name}.jsonl")
    if missing := [path for path in (certificates, drawn) if not path.exists()]:
        raise DataError(f"{missing[0]} is not here; `rrcm repro certify@{name}` makes it")
    (entry,) = present.evaluations([name])
    return entry


def _unknown(name: str, present: Present | None) -> str:
    """What ``name`` is instead of an evaluation, or which evaluation may be meant."""
    if present is None:
        return f"an evaluation: {PARAMS} is not here"
    evals = present.params.evals
    if own := [eval_name for eval_name, cfg in evals.items() if cfg.run == name]:
        return f"an evaluation of {PARAMS}, but a run; its evaluations: {', '.join(own)}"
    hint = suggest(name, [*evals]) or f" It has {', '.join(evals)}"
    return f"an evaluation of {PARAMS}.{hint}"
