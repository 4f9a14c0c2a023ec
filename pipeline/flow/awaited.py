"""Reads the states of all runs that a coordinator awaits, with one request for all of them.

There may be a run on each of hundreds of GPUs; a request for each of these, every few seconds,
would keep the server busy with answers that nothing has changed.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

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

        None if the server does not have it. After a request without an answer, the next one comes
        ``age`` seconds later, and until then the last answer is returned.

        Raises:
            httpx.HTTPError: The server did not answer.
        """
        with self._lock:
            if self._known[run] is None or time.monotonic() - self._asked > age:
                self._asked = time.monotonic()
                self._ask(client)
            return self._known[run]

    def _ask(self, client: SyncPrefectClient) -> None:
        runs = [*self._known]
        for start in range(0, len(runs), PAGE):
            page = runs[start : start + PAGE]
            chosen = FlowRunFilter(id=FlowRunFilterId(any_=page))
            found = {run.id: run for run in client.read_flow_runs(flow_run_filter=chosen)}
            self._known.update({run: found.get(run) for run in page})
