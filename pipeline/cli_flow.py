"""``rrcm flow``: the graph under Prefect, scheduled and tried again."""

from typing import Annotated

import typer

app = typer.Typer(
    help="Run the graph under Prefect: here, on a schedule, on workers.", no_args_is_help=True
)


@app.command()
def run(
    targets: Annotated[
        list[str] | None, typer.Argument(help="Stages, groups, globs or outputs; all of dvc.yaml.")
    ] = None,
    force: Annotated[
        list[str] | None,
        typer.Option(help="A stage, group or glob to run anyhow; may be repeated."),
    ] = None,
    retries: Annotated[int, typer.Option(min=0, help="Further tries of a stage that fails.")] = 2,
    hosts: Annotated[
        bool, typer.Option("--hosts", help="Run stages on workers, not in this checkout.")
    ] = False,
    commit: Annotated[str, typer.Option(help="With --hosts: what to run; HEAD.")] = "",
    publish: Annotated[
        str, typer.Option(help="With --hosts: a branch that gets dvc.lock and the metrics.")
    ] = "",
) -> None:
    """Run what is out of date, stages side by side where slots allow; stopped, it goes on."""
    from pipeline.flow import environment

    environment.prepare()
    from pipeline.flow import local  # imports prefect, which reads the environment

    local.run(
        targets or [],
        force=force or [],
        retries=retries,
        hosts=hosts,
        commit=commit,
        publish=publish,
    )


Schedules = Annotated[
    bool | None, typer.Option(help="Switch all on or off; as they are, at first off.")
]


@app.command()
def up(
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.")] = 4200,
    schedules: Schedules = None,
) -> None:
    """Run a Prefect server with the deployments and a worker of this checkout, until a signal."""
    from pipeline.flow import services

    services.up(host=host, port=port, schedules=schedules, say=typer.echo)


@app.command()
def worker(
    queue: Annotated[str, typer.Option(help="stages, or flows, which ask for them.")] = "stages",
    name: Annotated[str, typer.Option(help="Of the worker; host and folder.")] = "",
    limit: Annotated[int, typer.Option(min=0, help="Runs at once; 0: as many as slots.")] = 0,
) -> None:
    """Take stages for this host, in a clone of its own, until a signal ends it."""
    from pipeline.flow import services

    services.work(queue=queue, name=name, limit=limit, say=typer.echo)


@app.command()
def deploy(schedules: Schedules = None) -> None:
    """Tell a server, that of PREFECT_API_URL, of the deployments of prefect.yaml."""
    from pipeline.flow import environment

    environment.prepare()
    from pipeline.flow import server  # imports prefect, which reads the environment

    typer.echo(server.deploy(schedules))
