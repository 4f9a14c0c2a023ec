"""The commands of a checkout, which its entry point adds to ``rrcm``."""

import gc
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from pipeline.cli import flow
from pipeline.cli.checkout import Checkout, enter, given, needs_git
from pipeline.cli.data import data
from rrcm.cli.app import CHECKOUT, RESULTS, Commands, say

WITHOUT_GIT = ("check", "log", "plan", "preset")

app = typer.Typer()
app.command(rich_help_panel=CHECKOUT)(data)
app.add_typer(flow.app, name="flow", cls=Commands, rich_help_panel=CHECKOUT)


class InCheckout(TyperCommand):
    """A command that runs in the checkout around the current folder."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Enter the checkout before anything else; ``ctx.obj`` is where the command was typed."""
        ctx.obj = enter()
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run it; where DVC or git are asked, only in a clone."""
        if self.name not in WITHOUT_GIT:
            needs_git()
        return super().invoke(ctx)


@app.command(rich_help_panel=CHECKOUT)
def preset(
    name: Annotated[str, typer.Argument(help="A file of presets/, or ablation-WHAT.")],
    base: Annotated[
        str | None, typer.Option(help="Preset that an ablation varies.", show_default="digits")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite params.yaml even if it was edited.")
    ] = False,
) -> None:
    """Make a preset, or an ablation of one, params.yaml."""
    from pipeline.project import presets

    described = presets.use(name, base=base, force=force)
    say(f"params.yaml is now {described}; `rrcm repro` makes what it describes")


@app.command(rich_help_panel=CHECKOUT)
def check() -> None:
    """Check all of params.yaml.

    Nothing is run. Every key that a run or an evaluation uses is checked, also those of a method, a
    network or an augmentation that only a late stage needs: unknown, missing or mistyped keys,
    values out of range, names of components that do not exist. The first mistake is printed in one
    line, with its place, and the exit code is 1. Every stage makes the same checks before it
    starts.
    """
    from pipeline.workflow import status

    say(status.check())


@app.command(rich_help_panel=CHECKOUT)
def plan(
    preset: Annotated[
        str | None, typer.Argument(help="A preset.", show_default="the current params.yaml")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Runs, evaluations or stages, as globs, and what they need."),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="GPUs by name and number, as h100:8.", show_default="this machine"),
    ] = None,
) -> None:
    """Estimate the time of every costly stage; nothing is run."""
    from pipeline.project import estimates

    say(estimates.plan(preset, only=only or [], gpu=gpu))


@app.command(rich_help_panel=CHECKOUT)
def status() -> None:
    """Show which results are up to date, and what runs now."""
    from pipeline.workflow import status

    gc.disable()  # of the many objects that DVC makes none is garbage; a third of the time
    try:
        say(status.status())
    finally:
        gc.freeze()  # the process ends
        gc.enable()


@app.command(rich_help_panel=CHECKOUT)
def resolve() -> None:
    """Put dvc.lock together after a merge or rebase in git.

    Each stage has its entry of either side, or of an earlier commit, whose inputs are those that
    are here. Resolve params.yaml first. No result is removed.
    """
    from pipeline.workflow import resolve

    say(resolve.resolve())


@app.command(rich_help_panel=CHECKOUT)
def accept(
    targets: flow.Targets = None,
    *,
    because: Annotated[
        str, typer.Option(help="Why the code computes the same; it is kept in provenance/.")
    ],
) -> None:
    """Keep results whose code was rewritten and computes the same."""
    from pipeline.workflow import accept as accepting

    if not accepting.accept(targets or [], because=because, say=say):
        raise typer.Exit(1)


@app.command(rich_help_panel=CHECKOUT)
def adopt(
    folder: Annotated[
        Path, typer.Argument(help="Checkout, or results of one without DVC.", callback=given)
    ],
) -> None:
    """Take over results made elsewhere of the same inputs."""
    from pipeline.workflow import adopt as adopting

    if not adopting.adopt(folder, say=say):
        raise typer.Exit(1)


@app.command(rich_help_panel=CHECKOUT)
def pull(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Runs, evaluations or pre-trainings; or `report`.",
            show_default="whatever the remote has",
        ),
    ] = None,
    remote: Annotated[
        str | None,
        typer.Option(help="Remote to fetch from.", show_default="the default of `dvc remote`"),
    ] = None,
) -> None:
    """Fetch trained models or results from a DVC remote."""
    from pipeline.project import pulling

    say(pulling.pull(names or [], remote=remote))


@app.command("import", rich_help_panel=CHECKOUT)
def import_checkpoint(
    file: Annotated[
        Path, typer.Argument(help="State dict to import: .pth, .pt or .net.", callback=given)
    ],
    sigma: Annotated[float, typer.Option(help="Noise that it was trained at.")],
    heads: Annotated[
        int | None,
        typer.Option(help="Number of attention heads.", show_default="the paper's for its shapes"),
    ] = None,
    skip_norm: Annotated[
        bool, typer.Option("--skip-norm", help="The head follows no LayerNorm (CIFAR-10).")
    ] = False,
    normalise: Annotated[str | None, typer.Option(help="As of `rrcm certify`.")] = None,
    name: Annotated[
        str, typer.Option(help="Name of the run.", show_default="SIZE-imported-sSIGMA")
    ] = "",
) -> None:
    """Import a classifier or encoder from a checkpoint."""
    from pipeline.project import imports

    how = {"heads": heads, "skip_norm": skip_norm, "normalise": normalise}
    say(imports.import_checkpoint(file, sigma=sigma, name=name, **how))


@app.command(rich_help_panel=CHECKOUT)
def import_denoiser(
    file: Annotated[Path, typer.Argument(help="State dict to import: .pt.", callback=given)],
    name: Annotated[str, typer.Option(help="Name of its folder in imported/.")],
    image_size: Annotated[int, typer.Option(help="Side of its images in pixels.")],
    schedule: Annotated[str, typer.Option(help="Noise schedule, as cosine:4000 or linear:1000.")],
    rescale: Annotated[
        bool, typer.Option("--rescale", help="It takes times rescaled to 1000 steps.")
    ] = False,
    heads: Annotated[int | None, typer.Option(help="Number of attention heads.")] = None,
    head_channels: Annotated[
        int | None, typer.Option(help="Channels of each attention head, instead of --heads.")
    ] = None,
) -> None:
    """Import a UNet of improved- or guided-diffusion."""
    from pipeline.project import imports

    how = {"rescale": rescale, "heads": heads, "head_channels": head_channels}
    say(imports.import_denoiser(file, name=name, image_size=image_size, schedule=schedule, **how))


@app.command(
    rich_help_panel=CHECKOUT,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def repro(
    context: typer.Context,
    jobs: Annotated[
        int,
        typer.Option(
            min=1, help="Stages at a time; above 1, only targets and --allow-missing can follow."
        ),
    ] = 1,
    shares: Annotated[
        int, typer.Option(min=1, help="Shares that each sampling of votes is split into.")
    ] = 1,
) -> None:
    """Bring all results up to date, as `dvc repro` does.

    It has the options of `dvc repro`, and is safe from Ctrl-C and kill.
    """
    from pipeline.workflow import reproduce

    tell = partial(say, err=True)
    raise typer.Exit(reproduce.reproduce(context.args, jobs=jobs, shares=shares, say=tell))


@app.command(rich_help_panel=RESULTS)
def log(
    sink: Annotated[str, typer.Argument(help="Where to: tensorboard, mlflow or wandb.")],
    to: Annotated[
        str | None,
        typer.Option(help="Folder, or address of an MLflow server.", show_default="in results/"),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Trainings or their stages, as globs.", show_default="all"),
    ] = None,
) -> None:
    """Send curves of trainings to TensorBoard, MLflow or W&B."""
    from pipeline.project import log as logging

    say(logging.log(sink, to=to, only=only or [], say=say))


for command in (*app.registered_commands, *flow.app.registered_commands):
    command.cls = InCheckout
checkout = Checkout(app)  # the entry point
