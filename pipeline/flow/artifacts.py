"""What Prefect's pages show of a run: how far its stages are, how they ended, and the report.

None of this can fail a run: what a server does not take is told in the log, and left out.
"""

import base64
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

import httpx
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.exceptions import PrefectException

from pipeline.flow import summary
from pipeline.flow.environment import REPORT, REPORT_ADDRESS
from pipeline.flow.summary import Result
from rrcm.settings import Report

SECONDS = 5.0  # between two updates of a stage's progress
TABLE, CURVE, PAGE = REPORT / "table.md", REPORT / "certified_accuracy.png", REPORT / "index.html"
REFUSED = (httpx.HTTPError, PrefectException)


def key(*words: str) -> str:
    """A key as Prefect wants it: lower case, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")


@dataclass(kw_only=True, slots=True)
class _Bar:
    task_run: UUID
    percent: float
    text: str
    sent: bool = False
    artifact: UUID | None = None


class Progress:
    """How far running stages are: told by their threads, and sent by the one that has a client."""

    def __init__(self, flow_run: UUID, logger: logging.Logger | logging.LoggerAdapter) -> None:
        """Of this run; ``logger`` is told what the server did not take."""
        self._flow_run, self._logger = flow_run, logger
        self._bars: dict[str, _Bar] = {}
        self._mutex = threading.Lock()
        self._next = 0.0

    def tell(self, stage: str, task_run: UUID, percent: float, text: str) -> None:
        """A stage is so far; from any thread, and at no cost."""
        with self._mutex:
            bar = self._bars.get(stage)
            if bar is None or bar.task_run != task_run:
                bar = self._bars[stage] = _Bar(task_run=task_run, percent=percent, text=text)
            bar.percent, bar.text, bar.sent = percent, text, False

    def send(self, client: SyncPrefectClient, *, now: bool = False) -> None:
        """Tell the server what is new, but not more often than every SECONDS; or ``now``."""
        if not now and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SECONDS
        with self._mutex:
            new = {stage: bar for stage, bar in self._bars.items() if not bar.sent}
            for bar in new.values():
                bar.sent = True
        for stage, bar in new.items():
            try:
                self._send(client, stage, bar)
            except REFUSED as error:
                self._logger.warning("progress of %s: %s", stage, error)

    def _send(self, client: SyncPrefectClient, stage: str, bar: _Bar) -> None:
        if bar.artifact is not None:
            update = ArtifactUpdate(data=bar.percent, description=bar.text)
            client.update_artifact(artifact_id=bar.artifact, artifact=update)
            return
        artifact = ArtifactCreate(
            key=key("progress", stage),
            type="progress",
            description=bar.text,
            data=bar.percent,
            flow_run_id=self._flow_run,
            task_run_id=bar.task_run,
        )
        bar.artifact = client.create_artifact(artifact).id


def show(
    results: Sequence[Result],
    settings: Report,
    *,
    report: bool,
    logger: logging.Logger | logging.LoggerAdapter,
) -> None:
    """In a flow, at its end: the table of stages, and the ``report`` if this run vouches for it."""
    if results:
        _tried(logger, lambda: _stages(results))
    if not report:
        return
    address = os.environ.get(REPORT_ADDRESS, "").rstrip("/")
    page = f"{address}/{PAGE.name}" if address else ""
    if TABLE.is_file():
        _tried(logger, lambda: _accuracy(settings, page))
    if page:
        _tried(logger, lambda: _link(page))


def _stages(results: Sequence[Result]) -> None:
    create_table_artifact(
        summary.rows(results), key="stages", description=summary.sentence(results)
    )


def _accuracy(settings: Report, page: str) -> None:
    where = f"[The report]({page})" if page else f"The report: `{PAGE}` of the checkout"
    curve = ""
    if CURVE.is_file():  # as part of the text: an artifact of its own would show all its characters
        picture = base64.b64encode(CURVE.read_bytes()).decode()
        curve = f"![certified accuracy by radius](data:image/png;base64,{picture})\n\n"
    create_markdown_artifact(
        "## Certified accuracy\n\n"
        f"In percent, by radius r, with {100 * settings.confidence:g} % intervals; ACR is the "
        "average certified radius. r and σ are in pixels of [0, 1].\n\n"
        f"{TABLE.read_text()}\n\n{curve}{where}\n",
        key="certified-accuracy",
        description="certified accuracy",
    )


def _link(page: str) -> None:
    create_link_artifact(page, link_text="report", key="report", description="the report")


def _tried(logger: logging.Logger | logging.LoggerAdapter, create: Callable[[], None]) -> None:
    try:
        create()
    except REFUSED as error:
        logger.warning("not shown: %s", error)
