"""Prefect artifacts of a run: progress of its stages, a table of their results, and the report.

None of this can fail a run: an artifact that the server refuses is logged and left out.
"""

import base64
import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
)
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.exceptions import PrefectException

from pipeline.workflow.flow import summary
from pipeline.workflow.flow.environment import REPORT
from pipeline.workflow.flow.summary import Result
from rrcm.config.certification import Report

SECONDS = 5.0  # between two updates of a stage's progress
LATE = 10.0  # seconds that the server may take for the last update
TABLE, CURVE, PAGE = REPORT / "table.md", REPORT / "certified_accuracy.png", REPORT / "index.html"
Logger = logging.Logger | logging.LoggerAdapter
T = TypeVar("T")
REFUSED = (httpx.HTTPError, PrefectException)


@contextmanager
def progress(
    name: str, known: dict[str, UUID], *, every: float = SECONDS
) -> Iterator[Callable[[float, str], None]]:
    """Show a progress bar on the page of the current run or task while the block runs.

    Args:
        name: Name of the stage.
        known: The bars by name; an existing one is reused, so that retries share it.
        every: Seconds between updates, which are sent whether or not anything changed.

    Yields:
        A function that sets the percentage and the text of the bar; cheap, and thread-safe.
    """
    latest, over = [0.0, "at work"], threading.Event()

    def send() -> None:
        with get_client(sync_client=True) as client:
            while not over.is_set():
                over.wait(every)
                bar = ArtifactUpdate(data=latest[0], description=latest[1])
                _tried(logger, client.update_artifact, known[name], bar)

    logger = get_run_logger()
    if name not in known:
        key = re.sub(r"[^a-z0-9]+", "-", f"progress-{name}".lower()).strip("-")
        made = _tried(logger, create_progress_artifact, 0.0, key=key, description=latest[1])
        known |= {name: made} if made else {}
    sender = threading.Thread(target=send, daemon=True)
    if name in known:
        sender.start()
    try:
        yield lambda *bar: latest.__setitem__(slice(None), bar)
    finally:
        over.set()
        if name in known:
            sender.join(LATE)


def show(results: Sequence[Result], settings: Report, *, report: bool) -> None:
    """At the end of a flow, publish the table of stages and, if ``report``, the report."""
    logger = get_run_logger()
    if results:
        told = summary.sentence(results)
        _tried(logger, create_table_artifact, summary.rows(results), "stages", told)
    if report and TABLE.is_file():
        _tried(logger, _accuracy, settings)


def _accuracy(settings: Report) -> None:
    curve = ""
    if CURVE.is_file():  # inline: an artifact of its own would show the base64 text
        picture = base64.b64encode(CURVE.read_bytes()).decode()
        curve = f"![certified accuracy by radius](data:image/png;base64,{picture})\n\n"
    create_markdown_artifact(
        "## Certified accuracy\n\n"
        f"In percent, by radius r, with intervals of confidence {settings.confidence}; ACR is the "
        "average certified radius. r and σ are in pixels of [0, 1].\n\n"
        f"{TABLE.read_text()}\n\n{curve}The report: `{PAGE}` of the checkout\n",
        key="certified-accuracy",
        description="certified accuracy",
    )


def _tried(logger: Logger, call: Callable[..., T], *arguments: Any, **named: Any) -> T | None:
    try:
        return call(*arguments, **named)
    except REFUSED as error:
        logger.warning("not shown: %s", error)
        return None
