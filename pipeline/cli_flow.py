"""``rrcm flow``: the graph under Prefect, scheduled and tried again."""

import typer

app = typer.Typer(help="Run the graph under Prefect: here, on a schedule, on workers.")
