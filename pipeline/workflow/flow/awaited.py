"""Reads the states of all runs that a coordinator awaits, with one request for all of them.

There may be a run on each of hundreds of GPUs; a request for each of these, every few seconds,
would keep the server busy with answers that nothing has changed.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun

PAGE = 200  # runs that the server gives in one answer


class Awaited:
    """The awaited runs of one coordinator, for all of its threads."""

    def __init__(self) -> None:
        """Await no run yet."""
        self._lock = threading.Lock()
        self._known: dict[UUID, FlowRun | None] = {}  # None: not read yet, or deleted
        self._asked = 0.0  # when the server was asked last
        self._lost: httpx.HTTPError | None = None  # why it did not answer then

    @contextmanager
    def include(self, run: UUID) -> Iterator[None]:
        """Include a run in requests during the block."""
        with self._lock:
            self._known[run] = None
        try:
            yield
        finally:
            with self._lock:
                del self._known[run]

    def read(self, run: UUID, client: SyncPrefectClient, *, age: float) -> FlowRun | None:
        """Return an included run as the server saw it ``age`` seconds ago at most.

        None if the server does not have it. Until the next answer, the same run is the same object.

        Raises:
            httpx.HTTPError: The last request, which may be that of another thread, had no answer.
        """
        with self._lock:
            if self._known[run] is None or time.monotonic() - self._asked > age:
                self._asked, self._lost = time.monotonic(), None
                try:
                    self._ask(client)
                except httpx.HTTPError as error:
                    self._lost = error
            if self._lost:
                raise self._lost
            return self._known[run]

    def _ask(self, client: SyncPrefectClient) -> None:
        runs = [*self._known]
        for start in range(0, len(runs), PAGE):
            page = runs[start : start + PAGE]
            chosen = FlowRunFilter(id=FlowRunFilterId(any_=page))
            found = {run.id: run for run in client.read_flow_runs(flow_run_filter=chosen)}
            self._known.update({run: found.get(run) for run in page})
