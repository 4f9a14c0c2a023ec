"""``rrcm data``: raw data of each dataset."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Put raw data in place, verified.", no_args_is_help=True)

Source = Annotated[Path, typer.Option("--from", help="The files, or the folder that has them.")]
NoVerify = Annotated[bool, typer.Option("--no-verify", help="Take other files than the official.")]
Skip = Annotated[
    bool, typer.Option("--skip-unreadable", help="Leave such pictures out, and list them.")
]


@app.command()
def digits() -> None:
    """Write scikit-learn's 1,797 digits to data/ and check them against data.dvc."""
    from pipeline import acquire

    typer.echo(acquire.digits())


@app.command()
def cifar10(source: Source, no_verify: NoVerify = False) -> None:
    """Copy the batches of cifar-10-python.tar.gz, or of its folder, to data/."""
    from pipeline import acquire

    typer.echo(acquire.cifar10(source, verify=not no_verify))


@app.command()
def imagenet(source: Source, no_verify: NoVerify = False, skip: Skip = False) -> None:
    """Examine ILSVRC2012, folders or archives, where it is; data/ gets a manifest."""
    from pipeline import acquire

    typer.echo(acquire.pictures("imagenet", source, verify=not no_verify, skip_unreadable=skip))


@app.command()
def folder(source: Source, skip: Skip = False) -> None:
    """Examine pictures in a folder for each class, where they are; data/ gets a manifest."""
    from pipeline import acquire

    typer.echo(acquire.pictures("folder", source, verify=False, skip_unreadable=skip))
