"""The command line ``rrcm``: its commands, and those of other distributions; no heavy imports."""

import dataclasses
import sys
import warnings
from collections import Counter
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

from rrcm.cli.app import CERTIFY, RESULTS, Page, app, say, seen
from rrcm.cli.options import Options, takes
from rrcm.cli.project import Project
from rrcm.config.defaults import DRAWS
from rrcm.core.ending import INTERRUPTED
from rrcm.core.errors import ConfigError, PlausibilityWarning, RrcmError, printable
from rrcm.core.files import require_utf8
from rrcm.core.ranges import require
from rrcm.inference import extras

GROUP = "rrcm.commands"  # entry points of a project: an object with `commands`, and a `Project`
# Options of `certify` that a single answer does not have.
OF_MANY = {"images", "labels", "strict", "split", "subset", "budget", "shard"}
OF_DRAWS = {"stop", "radii", "noise", "certificate", "precision", "allow", "backend", "seed"}
FILES = typer.Argument(
    help="Votes (.jsonl), certificates, or the field's tables; - is standard input."
)
Linf = Annotated[int | None, typer.Option(metavar="D", help="Print ℓ∞ too: images of D values.")]
Pictures = Annotated[bool, typer.Option("--pictures", help="Pages of their pictures in ./shards.")]
PYTHONS = warnings.formatwarning
WARNED = Counter[str]()


def _project() -> Project:
    """Add the commands of an installed project, if there is one; return it."""
    for point in entry_points(group=GROUP):
        project = point.load()
        app.add_typer(project.commands)
        return project
    return Project()


PROJECT = _project()


@app.command(rich_help_panel=CERTIFY)
@takes()
def certify(asked: Options, page: Page = None) -> None:
    """Certify a run or any classifier; interrupted, it resumes."""
    here = Path.cwd()
    request = PROJECT.request(asked)
    from rrcm.cli.commands import on_demand  # heavy: a request is refused before

    say(on_demand.certify(request, PROJECT, page=page and seen(page, here)))


@app.command(rich_help_panel=CERTIFY)
@takes(but={"budget", "shard"})
def attack(
    asked: Options,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each search.")] = 20,
    restarts: Annotated[int, typer.Option(min=1, help="Searches at each radius.")] = 3,
    copies: Annotated[int, typer.Option(min=1, help="Noisy copies that are attacked.")] = 16,
    candidates: Annotated[
        Path | None,
        typer.Option(help="Folder of .npy files that other searches made, to judge instead."),
    ] = None,
    surrogate: Annotated[
        str | None,
        typer.Option(help="Network whose gradients to follow: FILE.py:FUNCTION, checkpoint, timm."),
    ] = None,
    foolbox: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Search of foolbox, as HopSkipJumpAttack: no gradients."),
    ] = None,
    base: Annotated[
        bool, typer.Option("--base", help="Attack the network without noise, too.")
    ] = False,
    page: Page = None,
) -> None:
    """Certify and attack: robust accuracy from both sides.

    Interrupted, it resumes.
    """
    ways: dict[str, Any] = {"candidates": candidates, "surrogate": surrogate, "foolbox": foolbox}
    typed = [f"--{name}" for name, value in ways.items() if value is not None]
    require(len(typed) < 2, f"{' and '.join(typed)}: pictures are found in one way; give one")
    here = Path.cwd()
    request = PROJECT.request(asked)
    if surrogate and (".py:" in surrogate or (here / surrogate).exists()):
        surrogate = str(seen(Path(surrogate), here))
    from rrcm.certification.attacking.search import Search
    from rrcm.cli.commands import attack

    how = Search(copies=copies, steps=steps, restarts=restarts)
    ways |= {"candidates": candidates and seen(candidates, here), "surrogate": surrogate}
    page = page and seen(page, here)
    say(attack.attack(request, PROJECT, how, base=base, page=page, **ways))


@app.command(rich_help_panel=CERTIFY)
@takes(but=OF_MANY)
def predict(
    asked: Options,
    image: Annotated[str, typer.Option(help="An image file, or the index of a test image.")],
    page: Page = None,
) -> None:
    """Classify one image with a certified radius, or abstain."""
    here, file = Path.cwd(), Path(image).exists()  # else the index of an image
    request = PROJECT.request(asked)
    from rrcm.cli.commands import predict

    image = str(seen(Path(image), here)) if file else image
    say(predict.predict(request, image, page=page and seen(page, here)))


@app.command(rich_help_panel=CERTIFY)
@takes(but=OF_MANY | OF_DRAWS)
def serve(
    asked: Options,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0 takes a free one.")] = 8000,
    timeout: Annotated[float, typer.Option(help="Seconds to answer a request in.")] = 30.0,
    queue: Annotated[int, typer.Option(help="Requests that may wait.")] = 64,
    max_bytes: Annotated[int, typer.Option(min=1, help="Bytes of the largest image.")] = 10_000_000,
    connections: Annotated[int, typer.Option(min=1, help="Connections at once.")] = 512,
    token_file: Annotated[
        Path | None, typer.Option(help="File of bearer tokens, one a line; requests must send one.")
    ] = None,
    reproducible: Annotated[
        bool, typer.Option("--reproducible", help="Let clients, if trusted, choose the seed.")
    ] = False,
    root_path: Annotated[
        str, typer.Option(help="Path of this server behind a proxy, such as /rrcm.")
    ] = "",
) -> None:
    """Serve certified answers over HTTP, until a signal ends it."""
    here = Path.cwd()
    if asked.tolerance is None:  # params.yaml's rule may be one that has no deadline
        asked = dataclasses.replace(asked, stop=DRAWS.stop)
    request = PROJECT.request(asked)
    from rrcm.cli.commands import serve

    terms: dict[str, Any] = {"seconds": timeout, "queue": queue, "bytes": max_bytes}
    terms |= {"reproducible": reproducible, "root_path": root_path}
    file = token_file and seen(token_file, here)
    serve.serve(request, host=host, port=port, connections=connections, token_file=file, **terms)


@app.command(rich_help_panel=RESULTS)
def report(
    files: Annotated[list[Path] | None, FILES] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write the page to.",
            show_default="report-NAME with FILES, else none",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Evaluations of a checkout, such as 'b-*'; may be repeated.",
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
    linf: Linf = None,
    pictures: Pictures = False,
) -> None:
    """Make a page of FILES, or print all results of a checkout."""
    if not files:
        say(PROJECT.report(only=only or [], out=out))
        return
    from rrcm.cli.commands import tables

    shown: dict[str, Any] = {"values": linf, "pictures": pictures}
    say(tables.report_files(files, out=out, alpha=alpha, sigma=sigma, **shown))


@app.command(rich_help_panel=RESULTS)
def compare(
    names: Annotated[
        list[str],
        typer.Argument(metavar="A B", help="Two evaluations or files, of the same images."),
    ],
    best: Annotated[
        bool, typer.Option("--best", help="Correct the best of any number for being chosen.")
    ] = False,
    radii: Annotated[
        str | None,
        typer.Option(help="Radii, such as 0,0.25,0.5.", show_default="those that were decided"),
    ] = None,
    page: Page = None,
) -> None:
    """Test whether two classifiers differ on the same images."""
    from rrcm.cli.commands import tables

    say(tables.compare(names, PROJECT, radii=radii, best=best, page=page))


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
    top: Annotated[
        int | None, typer.Option(metavar="K", help="Certify the label among the K likeliest.")
    ] = None,
    linf: Linf = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write: .csv, or .tsv for the field's table.", show_default="in results/"
        ),
    ] = None,
) -> None:
    """Certify stored votes again: another alpha, fewer draws, top-k."""
    from rrcm.cli.commands import tables

    chosen: dict[str, Any] = {"n": n, "alpha": alpha, "certificates": certificate or []}
    say(tables.derive(votes, **chosen, out=out, top=top, values=linf))


@app.command(rich_help_panel=RESULTS)
def audit(
    files: Annotated[list[Path], FILES],
    n: Annotated[int | None, typer.Option(help="Number of draws that is claimed.")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Failure probability that is claimed.")
    ] = None,
    sigma: Annotated[
        float | None, typer.Option(help="Noise that is claimed, for pixels in [0, 1].")
    ] = None,
    images: Annotated[
        int | None, typer.Option(help="Images of the data set, of which FILES have every k-th.")
    ] = None,
    linf: Annotated[
        int | None, typer.Option(metavar="D", help="Radii of ℓ∞ are of images of D values.")
    ] = None,
) -> None:
    """Infer how a table was made, and whether to trust it.

    Exit code 1 if a file cannot be trusted or read.
    """
    from rrcm.auditing import audit
    from rrcm.auditing.findings import Stated

    stated: dict[str, Any] = {"n": n, "alpha": alpha, "sigma": sigma, "images": images}
    stated["values"] = linf
    Stated(**stated)  # refused once, not for each file
    bad = False
    for number, file in enumerate(files):
        gap = "\n" * (number > 0)
        try:
            audited = audit.audit(file, **stated)
        except RrcmError as error:  # does not hide the other files
            say(f"{gap}error: {printable(str(error))}", err=True)
            bad = True
        else:
            say(f"{gap}{audited}")
            bad |= audited.trusted is False
    raise typer.Exit(int(bad))


@app.command(rich_help_panel=CERTIFY)
def doctor() -> None:
    """Check packages, devices and tools.

    Exit code 1 if one that is needed is missing.
    """
    from rrcm.cli.commands import doctor

    text, good = doctor.examine(PROJECT)
    say(text)
    raise typer.Exit(int(not good))


def _warning(message: Warning | str, category: type[Warning], *place: Any, **line: Any) -> str:
    """As `warnings.formatwarning`; ours take one line, and once: before drawing or with a table."""
    if not issubclass(category, PlausibilityWarning):
        return PYTHONS(message, category, *place, **line)
    told = f"warning: {printable(str(message))}\n"
    WARNED[told] += 1
    return told if WARNED[told] == 1 else ""


def main() -> None:
    """Run the command of `sys.argv`."""
    warnings.formatwarning = _warning
    with extras.named(" ".join(("rrcm", *sys.argv[1:2]))):
        for argument in sys.argv:
            require_utf8(argument, ConfigError)
        try:
            app()
        except SystemExit as end:
            if end.code == INTERRUPTED:  # as typer reports Ctrl-C
                raise KeyboardInterrupt from None
            raise
