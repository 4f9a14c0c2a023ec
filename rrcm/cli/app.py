"""The command line as such: the group of all commands, its headings, and how results are printed.

Other distributions add commands to it; rrcm/cli/main.py loads them.
"""

from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rrcm.core.errors import ConfigError, printable
from rrcm.core.files import require_place
from rrcm.core.ranges import require
from rrcm.core.registry import suggest

CERTIFY, RESULTS, CHECKOUT = "Certify and predict", "Read results", "Work in a checkout"
HEADINGS = (CERTIFY, RESULTS, CHECKOUT)  # in the order of `rrcm --help`
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

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that ``args`` begin with.

        Raises:
            ConfigError: There is none; where no checkout has added its commands, says so.
        """
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            known = ctx.find_root().command.commands
            headings = {getattr(command, "rich_help_panel", None) for command in known.values()}
            more = "" if CHECKOUT in headings else " here; a checkout of rrcm has more: `make env`"
            message = f"{ctx.command_path} {args[0]}: no such command{more}."
            raise ConfigError(f"{message}{suggest(args[0], [*self.commands])}".removesuffix("."))
        return super().resolve_command(ctx, args)


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
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Certified robustness of image classifiers by randomized smoothing."""


def say(text: str, *, err: bool = False) -> None:
    """Print results, which may contain untrusted names."""
    typer.echo(printable(text, lines=True), err=err)


def seen(path: Path, here: Path) -> Path:
    """A ``path`` that was given in the folder ``here``, as seen from the current one."""
    return path if here == Path.cwd() else here / path


def pages(paths: list[Path]) -> str:
    """What a command says of the pages of pictures that it wrote."""
    more = f", and {len(paths) - 1} further pages to {paths[-1].name}" if paths[1:] else ""
    return f"pictures: {paths[0]}{more}"


def _page(path: Path | None) -> Path | None:
    """Refuse a page that cannot be written, before anything is drawn."""
    if path is not None:
        require(path.suffix == ".html", f"--page: a name that ends in .html, got {path}")
        require_place(path)
    return path


Page = Annotated[
    Path | None,
    typer.Option(metavar="FILE.html", help="Page of pictures to write.", callback=_page),
]
