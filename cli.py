"""``rrcm``: what people type. Only this file knows typer; heavy imports wait for their command."""

import sys
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from rrcm.errors import RrcmError

app = typer.Typer(
    help="Certified robustness of image classifiers by randomized smoothing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data = typer.Typer(help="Put raw data in place, verified.", no_args_is_help=True)
app.add_typer(data, name="data")

Model = Annotated[str, typer.Option(help="A model of params.yaml, e.g. tiny.")]
Sigma = Annotated[float, typer.Option(help="Sigma that the run was trained at, pixels in [0, 1].")]
Method = Annotated[str, typer.Option(help="A method of params.yaml.")]
EvalSigma = Annotated[float | None, typer.Option(help="Sigma to smooth with; that of training.")]
Draws = Annotated[int | None, typer.Option(help="Noisy draws an image; that of params.yaml.")]
Alpha = Annotated[float | None, typer.Option(help="Failure probability; that of params.yaml.")]


@data.command("digits")
def data_digits() -> None:
    """Write scikit-learn's 1,797 digits to data/ and check them against data.dvc."""
    from pipeline import graph
    from rrcm.data import digits

    path = digits.fetch(Path("data"))
    graph.accept(Path("data.dvc"))
    typer.echo(f"{path}: 1,797 images, as data.dvc has them")


@app.command()
def preset(
    name: str,
    force: Annotated[
        bool, typer.Option(help="Overwrite params.yaml even if it was edited.")
    ] = False,
) -> None:
    """Make presets/NAME.yaml the current params.yaml."""
    from pipeline import presets

    presets.use(name, force=force)
    typer.echo(f"params.yaml is now presets/{name}.yaml; `dvc repro` makes what it describes")


@app.command()
def certify(
    model: Model,
    sigma: Sigma,
    method: Method = "rrcm",
    eval_sigma: EvalSigma = None,
    n: Draws = None,
    alpha: Alpha = None,
    subset: Annotated[
        str | None, typer.Option(help="all, every:K or first:K; that of params.yaml.")
    ] = None,
    stop: Annotated[
        str | None, typer.Option(help="A stopping rule of params.yaml; its sample.stop.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Stop drawing after so long (90s, 10m, 2h), soundly.")
    ] = None,
    shard: Annotated[str, typer.Option(help="Only part i of k of the images, as i/k.")] = "1/1",
    devices: Annotated[
        str | None, typer.Option(help="One process on each: GPU numbers, or cpu (0,1 or cpu,cpu).")
    ] = None,
) -> None:
    """Certify a trained run on the test images; stopped and started again, it goes on."""
    from pipeline import requests

    request = requests.resolve(
        model,
        method,
        sigma,
        eval_sigma=eval_sigma,
        alpha=alpha,
        sample={"n": n, "subset": subset, "stop": stop},
        shard=shard,
        budget=budget,
        devices=devices,
    )
    from pipeline import ondemand  # heavy: what is wrong with a request is said before

    typer.echo(ondemand.share(request) if request.devices else ondemand.certify(request))


@app.command()
def merge(votes: Annotated[list[Path], typer.Argument(help="Votes of all shards.")]) -> None:
    """Put the votes of `rrcm certify --shard` together, and certify them as one."""
    from pipeline import ondemand

    typer.echo(ondemand.merge(votes))


@app.command()
def predict(
    model: Model,
    sigma: Sigma,
    image: Annotated[str, typer.Option(help="A test image's index, or a picture file.")],
    method: Method = "rrcm",
    eval_sigma: EvalSigma = None,
    n: Draws = None,
    alpha: Alpha = None,
) -> None:
    """Classify one image, or abstain, with the radius within which the answer is certified."""
    from pipeline import requests

    request = requests.resolve(
        model, method, sigma, eval_sigma=eval_sigma, alpha=alpha, sample={"n": n}
    )
    from pipeline import ondemand

    typer.echo(ondemand.predict(request, image))


@app.command()
def report() -> None:
    """Print the certified accuracy of everything that params.yaml evaluates."""
    from pipeline import ondemand

    typer.echo(ondemand.report())


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
def doctor(
    rng: Annotated[
        bool, typer.Option("--rng", help="Test the noise that this machine draws.")
    ] = False,
) -> None:
    """Say what is installed, which devices there are, and what is missing."""
    from pipeline import doctor

    typer.echo(doctor.examine_noise() if rng else doctor.examine())


def main() -> None:
    """Run a command; errors that a user can fix take one line and exit code 1."""
    try:
        app()
    except RrcmError as error:
        sys.exit(f"error: {error}")
