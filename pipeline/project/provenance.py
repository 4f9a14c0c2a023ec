"""Reads how the results of a checkout were made: versions, machines, and the commit with them."""

from pathlib import Path

import pandas as pd

from pipeline.workflow import git
from pipeline.workflow.dvc_lock import LOCKFILE
from rrcm.core.errors import DataError
from rrcm.core.files import read_json

FOLDER = Path("provenance")


def versions() -> pd.DataFrame:
    """Return a row for each kind of stage and environment, from ``provenance/``; empty without it.

    Raises:
        DataError: A record is damaged.
    """
    rows = []
    for path in sorted(FOLDER.glob("*.json")):
        record = read_json(path)
        try:
            rows.append(
                {
                    "stages": record["stage"].partition("@")[0],
                    "python": record["python"],
                    **record["packages"],
                    "machine": record["machine"],
                    "seconds": float(record["seconds"]),
                }
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise DataError(f"{path}: no record of provenance; `dvc checkout {path}`") from None
    if not rows:
        return pd.DataFrame()
    table = pd.DataFrame(rows).fillna("?")
    keys = [name for name in table.columns if name != "seconds"]
    groups = table.groupby(keys, sort=False)["seconds"].agg(["size", "sum"]).reset_index()
    groups["stages"] += [f" ({size})" if size > 1 else "" for size in groups.pop("size")]
    return groups.assign(seconds=[f"{total:,.0f}" for total in groups.pop("sum")])


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
