"""``rrcm data``: puts raw data where the graph reads them, verified and tracked by DVC."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.checkout import given
from rrcm.cli.app import say
from rrcm.core import registry

DATA = Path("data")
NAMES = [name.replace("_", "-") for name in registry.names("datasets")]


def data(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(NAMES)}.")],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Folder or archive of the original files.",
            show_default="download them, where that is possible",
            callback=given,
        ),
    ] = None,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Accept files other than the official ones.")
    ] = False,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Leave out unreadable images, and list them.")
    ] = False,
) -> None:
    """Put the raw data of a dataset in place; verify them."""
    say(acquire(name, source, verify=not no_verify, skip_unreadable=skip_unreadable))


def acquire(name: str, source: Path | None, *, verify: bool, skip_unreadable: bool) -> str:
    """Put the files of a dataset, or their manifest, into data/<name>; returns what to print.

    Raises:
        ConfigError: There is no such dataset.
        StageError: dvc.lock is damaged.
        DataError: The files are missing, damaged or not the official ones.
    """
    from pipeline.runtime import graph, with_dvc
    from pipeline.workflow import lockfile
    from rrcm.data.ingest.listing import Origin

    lockfile.read()  # DVC tracks nothing beside a damaged one, and does not say why
    name = name.replace("-", "_")
    dataset = registry.load("datasets", name)
    origin = Origin(
        path=source, verify=verify, skip_unreadable=skip_unreadable, link=graph.DATA / name
    )
    acquired = dataset.acquire(DATA / name, origin)
    if not with_dvc.track(DATA):
        return f"{acquired}, as data.dvc has them"
    listed = ", ".join(sorted(folder.name for folder in DATA.iterdir()))
    return f"{acquired}, new to data.dvc, which now lists {listed}: commit it"
