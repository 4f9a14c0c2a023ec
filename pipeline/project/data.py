"""Puts raw data where the graph reads them, verified and tracked by DVC, for ``rrcm data``."""

from pathlib import Path

from pipeline.runtime import graph
from rrcm.core import registry
from rrcm.data.ingest.listing import Origin

DATA = Path("data")


def acquire(name: str, source: Path | None, *, verify: bool, skip_unreadable: bool) -> str:
    """Put the files of a dataset, or their manifest, into data/<name>; returns what to print.

    Args:
        name: A file of rrcm/data/datasets/, ``-`` for its ``_``.
        source: The folder or archive of the original files; None if none was named.
        verify: Whether they must be the official ones.
        skip_unreadable: Whether pictures that cannot be read are left out, or an error.

    Raises:
        ConfigError: There is no such dataset.
        DataError: The files are missing, damaged or not the official ones.
    """
    name = name.replace("-", "_")
    dataset = registry.load("datasets", name)
    origin = Origin(
        path=source, verify=verify, skip_unreadable=skip_unreadable, link=graph.DATA / name
    )
    acquired = dataset.acquire(DATA / name, origin)
    changed = graph.track(DATA)
    return f"{acquired}, {'new to data.dvc: commit it' if changed else 'as data.dvc has them'}"
