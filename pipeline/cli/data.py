"""``rrcm data``: puts the raw data of a dataset in place."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.checkout import given
from rrcm.cli.app import say
from rrcm.core import registry

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
    from pipeline.project.data import acquire

    say(acquire(name, source, verify=not no_verify, skip_unreadable=skip_unreadable))
