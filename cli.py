"""``rrcm``: what people type. Only this file knows typer; heavy imports wait for their command."""

import sys
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
) -> None:
    """Certify a trained run on the test images; stopped and started again, it goes on."""
    from pipeline import requests

    request = requests.resolve(
        model, method, sigma, eval_sigma=eval_sigma, n=n, alpha=alpha, subset=subset
    )
    from pipeline import ondemand  # heavy: what is wrong with a request is said before

    typer.echo(ondemand.certify(*request))


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

    request = requests.resolve(model, method, sigma, eval_sigma=eval_sigma, n=n, alpha=alpha)
    from pipeline import ondemand

    typer.echo(ondemand.predict(*request, image))


@app.command()
def report() -> None:
    """Print the certified accuracy of everything that params.yaml evaluates."""
    from pipeline import ondemand

    typer.echo(ondemand.report())


@app.command()
def doctor() -> None:
    """Say what is installed, which devices there are, and what is missing."""
    from pipeline import doctor

    typer.echo(doctor.examine())


def main() -> None:
    """Run a command; errors that a user can fix take one line and exit code 1."""
    try:
        app()
    except RrcmError as error:
        sys.exit(f"error: {error}")
