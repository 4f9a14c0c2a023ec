"""``rrcm check``, ``doctor``, ``bench``, ``latency``, ``representations``: beside results."""

from json import dumps
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def bench(
    model: Annotated[str, typer.Option(help="tiny, s, b or b_deep.")] = "tiny",
    image_size: Annotated[int, typer.Option(help="8, 32 or 224.")] = 8,
    repeats: Annotated[int, typer.Option(help="Turns of which the median is taken.")] = 5,
    seconds: Annotated[float, typer.Option(help="Of each turn of each variant.")] = 2.0,
    batch_size: Annotated[
        list[int] | None, typer.Option(help="Instead of the usual ones; may be repeated.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time the engine by backend, precision and batch, beside the usual loop and the peak."""
    from benchmarks import throughput

    batches = tuple(batch_size or ())
    result = throughput.measure(
        model, image_size, repeats=repeats, seconds=seconds, batches=batches
    )
    typer.echo(dumps(result, indent=2) if json else throughput.table(result))


@app.command()
def latency(
    seconds: Annotated[float, typer.Option(help="For each evaluation.")] = 5.0,
    radius: Annotated[
        float | None, typer.Option(help="Of the figure; the report's first above 0.")
    ] = None,
    reference: Annotated[str, typer.Option(help="The method that ratios are to.")] = "rrcm",
    out: Annotated[Path, typer.Option(help="Folder of table and figure.")] = Path(
        "results/latency"
    ),
) -> None:
    """Time all that params.yaml evaluates in one run, beside what it certifies."""
    from pipeline import latency

    typer.echo(latency.run(seconds=seconds, radius=radius, reference=reference, out=out))


@app.command()
def representations(
    out: Annotated[Path, typer.Option(help="Folder of table and figure.")] = Path(
        "results/representations"
    ),
) -> None:
    """Show what the encoders of params.yaml know: linear probes under noise, and distances."""
    from pipeline import representations

    typer.echo(representations.run(out=out))


@app.command()
def check() -> None:
    """Check all of params.yaml; list what `dvc repro` would run.

    Nothing is run. Every key is checked, also those of a method, a network or an augmentation that
    is needed only at the end: unknown, missing or mistyped keys, values out of range, names of what
    does not exist. The first mistake is printed in one line, with its place, and the exit code is
    1. Every stage checks the same before it starts.
    """
    from pipeline import check

    typer.echo(check.check())


@app.command()
def doctor(
    rng: Annotated[
        bool, typer.Option("--rng", help="Test the noise that this machine draws.")
    ] = False,
) -> None:
    """Say what is installed, which devices there are, and what is missing; exit 1 if needed."""
    from pipeline import doctor

    text, good = doctor.examine_noise() if rng else doctor.examine()
    typer.echo(text)
    raise typer.Exit(int(not good))
