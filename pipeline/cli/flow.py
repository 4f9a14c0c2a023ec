"""``rrcm flow``: runs the graph under Prefect, on a schedule or on workers, with retries."""

from typing import Annotated, Literal

import typer

from rrcm.cli.app import say

Targets = Annotated[
    list[str] | None,
    typer.Argument(help="Stages, groups, globs or outputs.", show_default="all of dvc.yaml"),
]
app = typer.Typer(help="Run the graph under Prefect: scheduled, on workers.", no_args_is_help=True)


@app.command()
def run(
    targets: Targets = None,
    force: Annotated[
        list[str] | None,
        typer.Option(help="Stage, group or glob to run even if up to date; may be repeated."),
    ] = None,
    retries: Annotated[int, typer.Option(min=0, help="How often to retry a stage that fails.")] = 2,
    hosts: Annotated[
        bool, typer.Option("--hosts", help="Run stages on workers instead of in this checkout.")
    ] = False,
    shares: Annotated[
        int, typer.Option(min=1, help="Tasks that each sampling of votes is split into.")
    ] = 1,
) -> None:
    """Run what is out of date, stages side by side where GPUs allow; stopped, it goes on."""
    from pipeline.workflow.flow import server

    server.run(say=say, targets=targets, force=force, retries=retries, hosts=hosts, shares=shares)


@app.command()
def up(
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0 takes a free one.")] = 4200,
) -> None:
    """Run a Prefect server with the deployments and a worker of this checkout, until a signal."""
    from pipeline.workflow.flow import server

    server.up(host=host, port=port, say=say)


@app.command()
def worker(
    queue: Annotated[
        Literal["stages", "flows"],
        typer.Option(help="Work queue: stages, or flows, whose runs ask for stages."),
    ] = "stages",
) -> None:
    """Take stages for this host, as many as GPUs, in a clone of its own, until a signal."""
    from pipeline.workflow.flow import server

    server.work(queue=queue, say=say)


@app.command()
def deploy() -> None:
    """Register the deployments of prefect.yaml at the server of PREFECT_API_URL."""
    from pipeline.workflow.flow import environment

    environment.named()
    from pipeline.workflow.flow import deployments  # imports prefect, which reads the environment

    say(deployments.deploy())
