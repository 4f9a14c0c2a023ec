"""One request reads all awaited runs, as often as the shortest age asks for."""

from contextlib import ExitStack
from typing import Any, cast
from uuid import UUID, uuid4

import httpx
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun

from pipeline.workflow.flow import awaited
from pipeline.workflow.flow.awaited import Awaited


class Server:
    """A server that has runs, and counts what it is asked."""

    def __init__(self, *runs: UUID) -> None:
        self.has = {run: FlowRun(id=run, flow_id=uuid4()) for run in runs}
        self.asked: list[set[UUID]] = []
        self.answers = True

    def read_flow_runs(self, *, flow_run_filter: Any) -> list[FlowRun]:
        wanted = flow_run_filter.id.any_
        self.asked.append({*wanted})
        if not self.answers:
            raise httpx.ConnectError("away")
        return [self.has[run] for run in wanted if run in self.has]

    @property
    def client(self) -> SyncPrefectClient:
        return cast(SyncPrefectClient, self)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("pipeline.workflow.flow.awaited.time.monotonic", lambda: now[0])
    return now


def test_all_runs_are_read_with_one_request_until_it_is_too_old(clock: list[float]) -> None:
    runs = [uuid4() for _ in range(3)]
    server, known = Server(*runs), Awaited()
    with known.include(runs[0]), known.include(runs[1]), known.include(runs[2]):
        for _ in range(2):
            for run in runs:
                assert known.read(run, server.client, age=5) is server.has[run]
        assert server.asked == [{*runs}]
        clock[0] += 3
        server.has[runs[1]] = FlowRun(id=runs[1], flow_id=uuid4(), name="changed")
        assert known.read(runs[0], server.client, age=5) is server.has[runs[0]]
        assert len(server.asked) == 1
        assert known.read(runs[0], server.client, age=2) is server.has[runs[0]]
        assert known.read(runs[1], server.client, age=5) is server.has[runs[1]]
        assert len(server.asked) == 2


def test_a_new_run_is_read_at_once_and_one_that_is_over_no_more(clock: list[float]) -> None:
    runs = [uuid4() for _ in range(2)]
    server, known = Server(*runs), Awaited()
    with known.include(runs[0]):
        known.read(runs[0], server.client, age=5)
        with known.include(runs[1]):
            assert known.read(runs[1], server.client, age=5) is server.has[runs[1]]
    with known.include(runs[1]):
        clock[0] += 6
        known.read(runs[1], server.client, age=5)
    assert server.asked == [{runs[0]}, {*runs}, {runs[1]}]


def test_a_deleted_run_is_none_and_a_silent_server_is_not_asked_again_at_once(
    clock: list[float],
) -> None:
    kept, deleted = uuid4(), uuid4()
    server, known = Server(kept, deleted), Awaited()
    with known.include(kept), known.include(deleted):
        known.read(kept, server.client, age=5)
        server.answers = False
        clock[0] += 6
        with pytest.raises(httpx.ConnectError):
            known.read(kept, server.client, age=5)
        with pytest.raises(httpx.ConnectError):  # so that others notice, too
            known.read(deleted, server.client, age=5)
        assert len(server.asked) == 2
        server.answers = True
        del server.has[deleted]
        clock[0] += 6
        assert known.read(deleted, server.client, age=5) is None
        assert known.read(kept, server.client, age=5) is server.has[kept]


def test_more_runs_than_an_answer_has_are_read_in_pages(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awaited, "PAGE", 2)
    runs = [uuid4() for _ in range(5)]
    server, known = Server(*runs), Awaited()
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(known.include(run))
        assert [known.read(run, server.client, age=5) for run in runs] == [*server.has.values()]
    assert sorted(len(asked) for asked in server.asked) == [1, 2, 2]
