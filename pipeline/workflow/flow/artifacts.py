"""Prefect artifacts of a run: progress of its stages, and a table of their results.

None of this can fail a run: an artifact that the server refuses is logged and left out.
"""

import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, create_table_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.exceptions import PrefectException

from pipeline.workflow import summary
from pipeline.workflow.summary import Result

SECONDS = 5.0  # between two updates of a stage's progress
LATE = 10.0  # seconds that the server may take for the last update
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


def show(results: Sequence[Result]) -> None:
    """At the end of a flow, write the table of stages to the log, and publish it."""
    logger = get_run_logger()
    if results:
        logger.info("the stages of this run\n%s", summary.text(results))
        told = summary.sentence(results)
        _tried(logger, create_table_artifact, summary.rows(results), "stages", told)


def _tried(logger: Logger, call: Callable[..., T], *arguments: Any, **named: Any) -> T | None:
    try:
        return call(*arguments, **named)
    except REFUSED as error:
        logger.warning("not shown: %s", error)
        return None
