"""The command line ``rrcm``: commands that need no checkout; heavy imports are deferred to them.

In a checkout, pipeline/cli/main.py adds its own commands to `app`.
"""

import dataclasses
import importlib
import os
import sys
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rrcm.cli import options, waiting
from rrcm.cli.options import Options
from rrcm.config.sections import PARAMS
from rrcm.core.ending import INTERRUPTED
from rrcm.core.errors import ConfigError, printable
from rrcm.core.files import require_utf8
from rrcm.inference import extras

CERTIFY, RESULTS = "Certify and predict", "Read results"
PROJECT, WORKFLOW, MACHINE = "Set up a project", "Run the workflow", "This machine"
HEADINGS = (CERTIFY, RESULTS, PROJECT, WORKFLOW, MACHINE)  # in the order of `rrcm --help`
NEED_CHECKOUT: tuple[str, ...] = (
    "accept",
    "check",
    "data",
    "flow",
    "import",
    "latency",
    "log",
    "plan",
    "preset",
    "pull",
)
NEED_CHECKOUT += ("representations", "repro", "status")
ROOT = Path(__file__).parents[2]  # root of the checkout, or site-packages if installed
WHOLE = 10_000  # characters of a summary line, which the terminal wraps


class Commands(TyperGroup):
    """A group whose help lists commands under headings, with full summaries."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each heading and its commands."""
        rows = defaultdict(list)
        for name, command in self.commands.items():
            heading = getattr(command, "rich_help_panel", None)
            rows[heading if heading in HEADINGS else "Commands"].append(
                (name, command.get_short_help_str(WHOLE))
            )
        widest = max(len(name) for name in self.commands)
        for heading in (*HEADINGS, "Commands"):
            if heading in rows:
                with formatter.section(heading):
                    formatter.write_dl([(name.ljust(widest), text) for name, text in rows[heading]])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by name.

        Raises:
            ConfigError: The command needs a checkout, and rrcm does not run from one.
        """
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in NEED_CHECKOUT and not in_checkout():
            raise ConfigError(
                f"rrcm {cmd_name}: needs a checkout of rrcm, and this is an installed package; "
                "clone the repository and run `make env` there"
            )
        return command


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes would take half of the time of --help
    context_settings={"max_content_width": 120, "help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rrcm {version('rrcm')}")
        raise typer.Exit


@app.callback()
def _rrcm(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Certified robustness of image classifiers by randomized smoothing."""
    if context.invoked_subcommand in NEED_CHECKOUT:
        context.obj = enter_checkout()


def given(context: typer.Context, path: Path | None) -> Path | None:
    """The callback of a path of commands that need a checkout, which is entered before."""
    return path if path is None else seen(path, context.obj)


@app.command(rich_help_panel=CERTIFY)
def certify(
    sigma: options.Sigma,
    model: options.Model = None,
    method: options.Method = None,
    eval_sigma: options.EvalSigma = None,
    onnx: options.Onnx = None,
    timm: options.Timm = None,
    weights: options.Weights = None,
    denoiser: options.Denoiser = None,
    images: options.Images = None,
    labels: options.Labels = None,
    strict: options.Strict = False,
    classes: options.Classes = None,
    size: options.Size = None,
    channels: options.Channels = None,
    resize: options.Resize = None,
    mean: options.Mean = None,
    std: options.Std = None,
    output: options.Output = None,
    batch_size: options.BatchSize = None,
    n: options.N = None,
    n0: options.N0 = None,
    alpha: options.Alpha = None,
    stop: options.Stop = None,
    radii: options.Radii = None,
    radius: options.Radius = None,
    tolerance: options.Tolerance = None,
    noise: options.Noise = None,
    certificate: options.Certificate = None,
    precision: options.Precision = None,
    allow: options.Allow = None,
    backend: options.Backend = None,
    seed: options.Seed = None,
    split: options.Split = None,
    subset: options.Subset = None,
    budget: options.Budget = None,
    shard: options.Shard = "1/1",
    devices: options.Devices = None,
) -> None:
    """Certify a run on test images, or any classifier on a folder; interrupted, it resumes."""
    asked = Options.of(locals())
    with asked.named_in_errors():
        from rrcm.cli import requests

        if model is not None:
            enter_checkout()
        request = requests.resolve(asked, outside="grid")
        from rrcm.cli.commands import on_demand  # heavy: a request is refused before

        say(on_demand.share(request) if request.devices else on_demand.certify(request))


@app.command(rich_help_panel=CERTIFY)
def merge(
    votes: Annotated[list[Path], typer.Argument(help="The votes files of all shards.")],
) -> None:
    """Merge the votes of `rrcm certify --shard`, and certify them as one."""
    from rrcm.cli.commands import on_demand

    say(on_demand.merge(votes))


@app.command(rich_help_panel=CERTIFY)
def predict(
    sigma: options.Sigma,
    image: Annotated[str, typer.Option(help="An image file, or the index of a test image.")],
    model: options.Model = None,
    method: options.Method = None,
    eval_sigma: options.EvalSigma = None,
    onnx: options.Onnx = None,
    timm: options.Timm = None,
    weights: options.Weights = None,
    denoiser: options.Denoiser = None,
    classes: options.Classes = None,
    size: options.Size = None,
    channels: options.Channels = None,
    resize: options.Resize = None,
    mean: options.Mean = None,
    std: options.Std = None,
    output: options.Output = None,
    batch_size: options.BatchSize = None,
    n: options.N = None,
    n0: options.N0 = None,
    alpha: options.Alpha = None,
    stop: options.Stop = None,
    radii: options.Radii = None,
    tolerance: options.Tolerance = None,
    noise: options.Noise = None,
    certificate: options.Certificate = None,
    precision: options.Precision = None,
    allow: options.Allow = None,
    backend: options.Backend = None,
    seed: options.Seed = None,
) -> None:
    """Classify one image with a certified radius, or abstain."""
    asked = Options.of(locals())
    with asked.named_in_errors():
        from rrcm.cli import requests

        if model is not None:
            file = Path(image).exists()  # else the index of an image
            here = enter_checkout()
            image = str(seen(Path(image), here)) if file else image
        request = requests.resolve(asked)
        from rrcm.cli.commands import predict

        say(predict.predict(request, image))


@app.command(rich_help_panel=CERTIFY)
def serve(
    sigma: options.Sigma,
    model: options.Model = None,
    method: options.Method = None,
    eval_sigma: options.EvalSigma = None,
    onnx: options.Onnx = None,
    timm: options.Timm = None,
    weights: options.Weights = None,
    denoiser: options.Denoiser = None,
    classes: options.Classes = None,
    size: options.Size = None,
    channels: options.Channels = None,
    resize: options.Resize = None,
    mean: options.Mean = None,
    std: options.Std = None,
    output: options.Output = None,
    batch_size: options.BatchSize = None,
    n: options.N = None,
    n0: options.N0 = None,
    alpha: options.Alpha = None,
    tolerance: options.Tolerance = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0 takes a free one.")] = 8000,
    timeout: Annotated[float, typer.Option(help="Seconds to answer a request in.")] = 30.0,
    queue: Annotated[int, typer.Option(help="Requests that may wait.")] = 64,
    max_bytes: Annotated[str, typer.Option(help="Largest image file.")] = "10M",
    connections: Annotated[int, typer.Option(min=1, help="Connections at once.")] = 512,
    token_file: Annotated[
        Path | None, typer.Option(help="File of bearer tokens, one a line; requests must send one.")
    ] = None,
    reproducible: Annotated[
        bool, typer.Option("--reproducible", help="Let clients, if trusted, choose the seed.")
    ] = False,
) -> None:
    """Serve certified answers over HTTP, until a signal ends it."""
    asked = Options.of(locals())
    with asked.named_in_errors():
        from rrcm.cli import requests

        if model is not None:
            here = enter_checkout()
            token_file = token_file and seen(token_file, here)
        request = requests.resolve(dataclasses.replace(asked, stop="anytime"))
        from rrcm.cli.commands import serve

        serve.serve(
            request, host=host, port=port, timeout=timeout, queue=queue, max_bytes=max_bytes,
            connections=connections, token_file=token_file, reproducible=reproducible,
        )  # fmt: skip


@app.command(rich_help_panel=RESULTS)
def report(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Votes (.jsonl), certificates (.csv) or the field's TSV files."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write the page to, in a checkout with pictures and versions.",
            show_default="report-NAME with FILES, else none",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Evaluations of params.yaml, such as 'b-*'; may be repeated.",
            show_default="all",
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="Failure probability of FILES.", show_default="that in the files"),
    ] = None,
    sigma: Annotated[
        float | None, typer.Option(help="Noise of FILES in which it is not recorded.")
    ] = None,
) -> None:
    """Print the certified accuracy of every evaluation of params.yaml; or make a page of FILES."""
    from rrcm.cli.commands import tables

    if files:
        say(tables.report_files(files, out=out, alpha=alpha, sigma=sigma))
        return
    here = enter_checkout()
    if out:
        say(tables.page(seen(out, here), only or []))
    else:
        say(tables.overview(only or []))


@app.command(rich_help_panel=RESULTS)
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="An evaluation, or a file.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another, of the same images.")],
    radii: Annotated[
        str | None,
        typer.Option(help="Radii, such as 0,0.25,0.5.", show_default="those that were decided"),
    ] = None,
) -> None:
    """Test whether two classifiers differ, in pairs on the same images."""
    from rrcm.cli.commands import tables

    files = [Path(name).is_file() for name in (first, second)]
    if not all(files):  # names of evaluations
        here = enter_checkout()
        first, second = (
            str(seen(Path(name), here)) if file else name
            for name, file in zip((first, second), files, strict=True)
        )
    say(tables.compare(first, second, radii=radii))


@app.command(rich_help_panel=RESULTS)
def derive(
    votes: Annotated[Path, typer.Argument(help="A votes file.")],
    n: Annotated[
        int | None, typer.Option(help="Use only so many draws.", show_default="all")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Failure probability.", show_default="that of VOTES")
    ] = None,
    certificate: Annotated[
        list[str] | None,
        typer.Option(help="Certificate to compute; may be repeated.", show_default="cohen"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write: .csv, or .tsv for the field's table.", show_default="in results/"
        ),
    ] = None,
) -> None:
    """Certify stored votes again without drawing: fewer draws, another alpha or certificate."""
    from rrcm.cli.commands import tables

    say(tables.derive(votes, n=n, alpha=alpha, certificates=certificate or ["cohen"], out=out))


@app.command(rich_help_panel=RESULTS)
def audit(
    files: Annotated[
        list[Path], typer.Argument(help="Certificates (.csv), votes (.jsonl) or the field's TSV.")
    ],
    n: Annotated[int | None, typer.Option(help="Number of draws that is claimed.")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Failure probability that is claimed.")
    ] = None,
    sigma: Annotated[
        float | None, typer.Option(help="Noise that is claimed, for pixels in [0, 1].")
    ] = None,
) -> None:
    """Infer how a table of certificates was made, and whether to trust it; exit code 1 if not."""
    from rrcm.auditing.audit import Audit, audit_each

    bad = False
    for number, one in enumerate(audit_each(files, n=n, alpha=alpha, sigma=sigma)):
        text = str(one) if isinstance(one, Audit) else f"error: {printable(str(one))}"
        say("\n" * (number > 0) + text, err=not isinstance(one, Audit))
        bad |= not isinstance(one, Audit) or one.trusted is False
    raise typer.Exit(int(bad))


@app.command(rich_help_panel=MACHINE)
def doctor(
    rng: Annotated[
        bool, typer.Option("--rng", help="Test the random numbers that this machine draws.")
    ] = False,
) -> None:
    """Check packages, devices and tools; exit code 1 if one that is needed is missing."""
    from rrcm.cli.commands import doctor

    text, good = doctor.examine_noise() if rng else doctor.examine(checkout=in_checkout())
    say(text)
    raise typer.Exit(int(not good))


def say(text: str, *, err: bool = False) -> None:
    """Print results, which may contain untrusted names."""
    typer.echo(printable(text, lines=True), err=err)


def enter_checkout() -> Path:
    """Make the checkout around the current folder the current one, as git does; return the latter.

    Nothing changes in a folder that has a params.yaml, or that lies in no checkout.
    """
    here = Path.cwd()
    if not PARAMS.exists():
        for folder in here.parents:
            if (folder / PARAMS).is_file() and (folder / "dvc.yaml").is_file():
                os.chdir(folder)
                say(f"note: at work in the checkout {folder}", err=True)
                break
    return here


def seen(path: Path, here: Path) -> Path:
    """A ``path`` that was given in the folder ``here``, as seen from the current one."""
    return path if here == Path.cwd() else here / path


def in_checkout() -> bool:
    """Return whether this package lies in a checkout and is not an installed copy."""
    return all((ROOT / file).is_file() for file in ("pyproject.toml", "pipeline/cli/main.py"))


def main() -> None:
    """Run the command of `sys.argv`."""
    with extras.named(" ".join(("rrcm", *sys.argv[1:2]))), waiting.shown():
        for argument in sys.argv:
            require_utf8(argument, ConfigError)
        if in_checkout():  # in any current folder, before other packages called `pipeline`
            sys.path.insert(0, str(ROOT))
            importlib.import_module("pipeline.cli.main")
        try:
            app()
        except SystemExit as end:
            if end.code == INTERRUPTED:  # as typer reports Ctrl-C
                raise KeyboardInterrupt from None
            raise
