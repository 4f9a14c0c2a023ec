"""``rrcm data``: puts the raw data of each dataset in place."""

from pathlib import Path
from typing import Annotated

import typer

from rrcm.cli.main import given, say

app = typer.Typer(help="Put raw data in place, and verify them.", no_args_is_help=True)

Source = Annotated[
    Path,
    typer.Option("--from", help="Folder or archive of the original files.", callback=given),
]
NoVerify = Annotated[
    bool, typer.Option("--no-verify", help="Accept files other than the official ones.")
]
Skip = Annotated[
    bool, typer.Option("--skip-unreadable", help="Leave out unreadable images, and list them.")
]


@app.command()
def digits() -> None:
    """Write scikit-learn's 1,797 digits to data/, and check them against data.dvc."""
    from pipeline.project import data

    say(data.digits())


CifarFiles = Annotated[
    Path | None,
    typer.Option(
        "--from",
        help="The archive cifar-10-python.tar.gz, or its folder.",
        show_default="download it",
        callback=given,
    ),
]


@app.command()
def cifar10(source: CifarFiles = None, no_verify: NoVerify = False) -> None:
    """Copy the batches of cifar-10-python.tar.gz to data/."""
    from pipeline.project import data

    say(data.cifar10(source, verify=not no_verify))


IdxFolder = Annotated[
    Path | None,
    typer.Option(
        "--from",
        help="Folder with the four IDX files.",
        show_default="download them",
        callback=given,
    ),
]


@app.command()
def mnist(source: IdxFolder = None, no_verify: NoVerify = False) -> None:
    """Copy the four files of MNIST, gzipped or not, to data/."""
    from pipeline.project import data

    say(data.idx_files("mnist", source, verify=not no_verify))


@app.command()
def fashion_mnist(source: IdxFolder = None, no_verify: NoVerify = False) -> None:
    """Copy the four files of Fashion-MNIST, gzipped or not, to data/."""
    from pipeline.project import data

    say(data.idx_files("fashion_mnist", source, verify=not no_verify))


@app.command()
def imagenet(source: Source, no_verify: NoVerify = False, skip: Skip = False) -> None:
    """Index ILSVRC2012, as folders or archives, where it lies; data/ gets a manifest."""
    from pipeline.project import data

    say(data.pictures("imagenet", source, verify=not no_verify, skip_unreadable=skip))


@app.command()
def folder(source: Source, skip: Skip = False) -> None:
    """Index images in one folder per class, where they lie; data/ gets a manifest."""
    from pipeline.project import data

    say(data.pictures("folder", source, verify=False, skip_unreadable=skip))
