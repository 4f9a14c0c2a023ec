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

Sigma = Annotated[float, typer.Option(help="Sigma of the noise, in pixels of [0, 1].")]
Model = Annotated[str | None, typer.Option(help="A model of params.yaml, trained at SIGMA.")]
Onnx = Annotated[str | None, typer.Option(help="Or: anybody's ONNX file.")]
Timm = Annotated[str | None, typer.Option(help="Or: a network of timm.")]
Method = Annotated[str | None, typer.Option(help="A method of params.yaml; rrcm.")]
EvalSigma = Annotated[float | None, typer.Option(help="Smooth a model with another sigma.")]
Weights = Annotated[Path | None, typer.Option(help="Of a timm network; those that timm has.")]
Classes = Annotated[Path | None, typer.Option(help="Names of the outputs, one in a line.")]
Size = Annotated[str | None, typer.Option(help="Of pictures, as 224 or HxW; the network's own.")]
Resize = Annotated[str | None, typer.Option(help="exact, squash or crop, before the noise; crop.")]
Mean = Annotated[str | None, typer.Option(help="Of channels in [0, 1], as .485,.456,.406; 0.")]
Std = Annotated[str | None, typer.Option(help="Of channels, as .229,.224,.225; 1.")]
Output = Annotated[str | None, typer.Option(help="The ONNX output that is the scores.")]
Batch = Annotated[int | None, typer.Option(help="Rows of a batch; that of params.yaml.")]
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
    context: typer.Context,
    sigma: Sigma,
    model: Model = None,
    method: Method = None,
    eval_sigma: EvalSigma = None,
    onnx: Onnx = None,
    timm: Timm = None,
    weights: Weights = None,
    images: Annotated[
        Path | None, typer.Option(help="A folder of pictures, for ONNX and timm.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="CSV of file,label for IMAGES.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="No picture may be unreadable.")] = False,
    classes: Classes = None,
    size: Size = None,
    resize: Resize = None,
    mean: Mean = None,
    std: Std = None,
    output: Output = None,
    batch_size: Batch = None,
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
    """Certify a run on the test images, or any classifier on a folder; stopped, it goes on."""
    from pipeline import requests

    request = requests.resolve(context.params, outside="grid")
    from pipeline import ondemand  # heavy: what is wrong with a request is said before

    typer.echo(ondemand.share(request) if request.devices else ondemand.certify(request))


@app.command()
def merge(votes: Annotated[list[Path], typer.Argument(help="Votes of all shards.")]) -> None:
    """Put the votes of `rrcm certify --shard` together, and certify them as one."""
    from pipeline import ondemand

    typer.echo(ondemand.merge(votes))


@app.command()
def predict(
    context: typer.Context,
    sigma: Sigma,
    image: Annotated[str, typer.Option(help="A picture file, or a test image's index.")],
    model: Model = None,
    method: Method = None,
    eval_sigma: EvalSigma = None,
    onnx: Onnx = None,
    timm: Timm = None,
    weights: Weights = None,
    classes: Classes = None,
    size: Size = None,
    resize: Resize = None,
    mean: Mean = None,
    std: Std = None,
    output: Output = None,
    batch_size: Batch = None,
    n: Draws = None,
    alpha: Alpha = None,
) -> None:
    """Classify one image, or abstain, with the radius within which the answer is certified."""
    from pipeline import requests

    request = requests.resolve(context.params)
    from pipeline import predict

    typer.echo(predict.predict(request, image))


@app.command()
def serve(
    context: typer.Context,
    sigma: Sigma,
    model: Model = None,
    method: Method = None,
    eval_sigma: EvalSigma = None,
    onnx: Onnx = None,
    timm: Timm = None,
    weights: Weights = None,
    classes: Classes = None,
    size: Size = None,
    resize: Resize = None,
    mean: Mean = None,
    std: Std = None,
    output: Output = None,
    batch_size: Batch = None,
    n: Draws = None,
    alpha: Alpha = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.")] = 8000,
    timeout: Annotated[float, typer.Option(help="Seconds until an answer, from arrival.")] = 30.0,
    queue: Annotated[int, typer.Option(help="Requests that may wait.")] = 64,
    max_bytes: Annotated[str, typer.Option(help="The largest picture file.")] = "10M",
    reproducible: Annotated[
        bool, typer.Option("--reproducible", help="Let clients, if trusted, choose the noise.")
    ] = False,
) -> None:
    """Answer pictures over HTTP, with a class and a certified radius, until a signal ends it."""
    from pipeline import requests

    request = requests.resolve(context.params | {"stop": "anytime"})
    from pipeline import serve

    serve.serve(
        request,
        host=host,
        port=port,
        timeout=timeout,
        queue=queue,
        max_bytes=max_bytes,
        reproducible=reproducible,
    )


@app.command()
def report(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Votes (.jsonl), certificates (.csv) or TSV files.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the page; report-NAME.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Failure probability of FILES.")] = None,
    sigma: Annotated[float | None, typer.Option(help="Sigma of FILES that do not say it.")] = None,
) -> None:
    """Print the certified accuracy of all that params.yaml evaluates; or make a page of FILES."""
    from pipeline import analysis

    if files:
        typer.echo(analysis.report_files(files, out=out, alpha=alpha, sigma=sigma))
    else:
        typer.echo(analysis.overview())


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="An evaluation, or a file.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another, of the same images.")],
    radii: Annotated[str | None, typer.Option(help="Radii, such as 0,0.25,0.5.")] = None,
) -> None:
    """Test whether two classifiers differ, in pairs on the same images."""
    from pipeline import analysis

    typer.echo(analysis.compare(first, second, radii=radii))


@app.command()
def derive(
    votes: Annotated[Path, typer.Argument(help="A votes file.")],
    n: Annotated[int | None, typer.Option(help="Fewer draws; all of them.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Failure probability; that of VOTES.")] = None,
    certificate: Annotated[
        list[str] | None, typer.Option(help="A certificate, may be repeated; cohen.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A .csv file, or .tsv for the field's table.")
    ] = None,
) -> None:
    """Certify stored votes again, drawing nothing: fewer draws, another alpha or certificate."""
    from pipeline import analysis

    typer.echo(
        analysis.derive(votes, n=n, alpha=alpha, certificates=certificate or ["cohen"], out=out)
    )


@app.command()
def audit(
    files: Annotated[
        list[Path], typer.Argument(help="Certificates (.csv), votes (.jsonl) or the field's TSV.")
    ],
    n: Annotated[int | None, typer.Option(help="Draws that are said to have been made.")] = None,
    alpha: Annotated[float | None, typer.Option(help="The failure probability said.")] = None,
    sigma: Annotated[float | None, typer.Option(help="The sigma said, in pixels.")] = None,
) -> None:
    """Say what made a table of certificates, and whether it can be trusted; exit 1 if not."""
    from rrcm.auditing.audit import audit

    found = [audit(file, n=n, alpha=alpha, sigma=sigma) for file in files]
    typer.echo("\n\n".join(map(str, found)))
    raise typer.Exit(int(any(one.trusted is False for one in found)))


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
