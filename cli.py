"""``rrcm``: what people type. Heavy imports wait for their command."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline import cli_data, cli_flow, cli_measure
from pipeline.ending import INTERRUPTED, reported
from pipeline.options import asks
from rrcm.errors import ConfigError, printable
from rrcm.files import require_utf8

app = typer.Typer(
    help="Certified robustness of image classifiers by randomized smoothing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes would take half of the time of --help
    context_settings={"max_content_width": 120},
)
app.add_typer(cli_data.app, name="data")
app.add_typer(cli_flow.app, name="flow")
app.add_typer(cli_measure.app)

Sigma = Annotated[float, typer.Option(help="Sigma of the noise, in pixels of [0, 1].")]


@app.command()
def preset(
    name: str,
    base: Annotated[
        str | None, typer.Option(help="Of an ablation: the preset that it varies; digits.")
    ] = None,
    force: Annotated[
        bool, typer.Option(help="Overwrite params.yaml even if it was edited.")
    ] = False,
) -> None:
    """Make presets/NAME.yaml, or an ablation of one, the current params.yaml."""
    from pipeline import presets

    described = presets.use(name, base=base, force=force)
    _say(f"params.yaml is now {described}; `dvc repro` makes what it describes")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def repro(context: typer.Context) -> None:
    """Bring the graph up to date: `dvc repro` and its options, safe from Ctrl-C and kill."""
    from pipeline import reproduce

    raise typer.Exit(reproduce.reproduce(context.args, say=lambda line: typer.echo(line, err=True)))


@app.command()
def pull(
    names: Annotated[
        list[str], typer.Argument(help="Runs, evaluations or pre-trainings; or report.")
    ],
    remote: Annotated[
        str | None, typer.Option(help="A remote of `dvc remote list`; the default one.")
    ] = None,
) -> None:
    """Fetch what certifies a run, or what came of it, from a DVC remote."""
    from pipeline import pulling

    _say(pulling.pull(names, remote=remote))


@app.command("import")
def import_checkpoint(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="A state dict: .pth, .pt or .net.")],
    classes: Annotated[int | None, typer.Option(help="How many classes it knows.")] = None,
    sigma: Annotated[float | None, typer.Option(help="Sigma that it was trained at.")] = None,
    arch: Annotated[str | None, typer.Option(help="s, b or b_deep; from the shapes.")] = None,
    heads: Annotated[
        int | None, typer.Option(help="Attention heads, if shapes do not say.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Pixels of a side; of a classifier, checked.")
    ] = None,
    skip_norm: Annotated[
        bool, typer.Option("--skip-norm", help="The head reads no LayerNorm (CIFAR-10).")
    ] = False,
    name: Annotated[str | None, typer.Option(help="Of what is made; ARCH-imported-sSIGMA.")] = None,
    denoiser: Annotated[
        bool, typer.Option("--denoiser", help="A UNet of improved- or guided-diffusion.")
    ] = False,
    schedule: Annotated[
        str | None, typer.Option(help="Its noise, as cosine:4000 or linear:1000.")
    ] = None,
    rescale: Annotated[
        bool, typer.Option("--rescale", help="It is told times as if of 1000 steps.")
    ] = False,
    head_channels: Annotated[
        int | None, typer.Option(help="Channels of a head, instead of HEADS.")
    ] = None,
) -> None:
    """Make a run of a checkpoint of the reference implementation of rRCM, or keep a denoiser."""
    from pipeline import imports

    imports.check_options(context.params)
    if denoiser:
        from pipeline import import_denoiser

        _say(
            import_denoiser.import_denoiser(
                file,
                name=name,
                schedule=schedule,
                rescale=rescale,
                image_size=image_size,
                heads=heads,
                head_channels=head_channels,
            )
        )
        return
    _say(
        imports.import_checkpoint(
            file,
            arch=arch,
            classes=classes,
            sigma=sigma,
            name=name,
            skip_norm=skip_norm,
            heads=heads,
            image_size=image_size,
        )
    )


@app.command()
@asks(typer.Option)
def certify(
    context: typer.Context,
    sigma: Sigma,
    images: Annotated[
        Path | None, typer.Option(help="A folder of pictures, for ONNX and timm.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="CSV of file,label for IMAGES.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="No picture may be unreadable.")] = False,
    _: None = None,
    split: Annotated[
        str | None, typer.Option(help="Of a run: test, or choice to compare recipes; sample.split.")
    ] = None,
    subset: Annotated[
        str | None, typer.Option(help="all, every:K or first:K; that of params.yaml.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Stop drawing after so long (90s, 10m, 2h), soundly.")
    ] = None,
    shard: Annotated[str, typer.Option(help="Only part i of k of the images, as i/k.")] = "1/1",
    devices: Annotated[
        str | None, typer.Option(help="One process on each: GPU numbers, or cpu (0,1 or cpu,cpu).")
    ] = None,
    prefixes: Annotated[
        bool, typer.Option("--prefixes", help="Of an ensemble: its first 1, 2, … members, too.")
    ] = False,
) -> None:
    """Certify a run on images of the data, or any classifier on a folder; stopped, it goes on."""
    from pipeline import requests

    request = requests.resolve(context.params, outside="grid")
    from pipeline import ondemand  # heavy: what is wrong with a request is said before

    if request.prefixes:
        from pipeline import prefixes as first

        _say(first.certify(request))
        return
    _say(ondemand.share(request) if request.devices else ondemand.certify(request))


@app.command()
def merge(votes: Annotated[list[Path], typer.Argument(help="Votes of all shards.")]) -> None:
    """Put the votes of `rrcm certify --shard` together, and certify them as one."""
    from pipeline import ondemand

    _say(ondemand.merge(votes))


@app.command()
@asks(typer.Option)
def predict(
    context: typer.Context,
    sigma: Sigma,
    image: Annotated[str, typer.Option(help="A picture file, or a test image's index.")],
    _: None = None,
) -> None:
    """Classify one image, or abstain, with the radius within which the answer is certified."""
    from pipeline import requests

    request = requests.resolve(context.params)
    from pipeline import predict

    _say(predict.predict(request, image))


@app.command()
@asks(typer.Option, draws=False)
def serve(
    context: typer.Context,
    sigma: Sigma,
    _: None = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.")] = 8000,
    timeout: Annotated[float, typer.Option(help="Seconds until an answer, from arrival.")] = 30.0,
    queue: Annotated[int, typer.Option(help="Requests that may wait.")] = 64,
    max_bytes: Annotated[str, typer.Option(help="The largest picture file.")] = "10M",
    max_total: Annotated[str, typer.Option(help="All of them in memory at once.")] = "100M",
    connections: Annotated[
        int | None,
        typer.Option(help="At once; as many as the limit of open files leaves room for."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the bearer token that requests must send.")
    ] = None,
    reproducible: Annotated[
        bool, typer.Option("--reproducible", help="Let clients, if trusted, choose the noise.")
    ] = False,
) -> None:
    """Answer pictures over HTTP, with a class and a certified radius, until a signal ends it."""
    from pipeline import requests

    request = requests.resolve(context.params | {"stop": "anytime"})
    from pipeline import serve

    own = ("host", "port", "timeout", "queue", "max_bytes", "max_total", "connections")
    own += ("token_file", "reproducible")
    serve.serve(request, **{key: context.params[key] for key in own})


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
        _say(analysis.report_files(files, out=out, alpha=alpha, sigma=sigma))
    else:
        _say(analysis.overview())


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="An evaluation, or a file.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another, of the same images.")],
    radii: Annotated[str | None, typer.Option(help="Radii, such as 0,0.25,0.5.")] = None,
) -> None:
    """Test whether two classifiers differ, in pairs on the same images."""
    from pipeline import analysis

    _say(analysis.compare(first, second, radii=radii))


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

    _say(analysis.derive(votes, n=n, alpha=alpha, certificates=certificate or ["cohen"], out=out))


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
    from rrcm.auditing.audit import Audit, audit_each

    bad = False
    for number, one in enumerate(audit_each(files, n=n, alpha=alpha, sigma=sigma)):
        text = str(one) if isinstance(one, Audit) else f"error: {printable(str(one))}"
        _say("\n" * (number > 0) + text, err=not isinstance(one, Audit))
        bad |= not isinstance(one, Audit) or one.trusted is False
    raise typer.Exit(int(bad))


def _say(text: str, *, err: bool = False) -> None:
    """Print results, which may have anybody's names in them."""
    typer.echo(printable(text, lines=True), err=err)


def main() -> None:
    """Run a command; errors that a user can fix take one line and exit code 1."""
    with reported():
        for argument in sys.argv:
            require_utf8(argument, ConfigError)
        try:
            app()
        except SystemExit as end:
            if end.code == INTERRUPTED:  # as typer says it
                raise KeyboardInterrupt from None
            raise
