import asyncio
import threading
import time

import pytest
from helpers import few
from hypothesis import given
from hypothesis import strategies as st

from rrcm.serving.queue import ClientGone, DeadlinePassed, Full, WorkQueue

FOREVER = 60.0


async def never() -> None:
    await asyncio.Event().wait()


def soon(seconds: float) -> float:
    return time.monotonic() + seconds


def idle(line: WorkQueue) -> bool:
    """Whether all that was given out has come back."""
    return (line.inside, line.working, line._turns._value) == (0, 0, line.workers)


async def nothing_runs_on() -> bool:
    """Whether no task but this one is left."""
    await asyncio.sleep(0.01)
    return len(asyncio.all_tasks()) == 1


def test_work_is_done_in_order_and_never_more_than_there_are_threads():
    done, at_once, most = [], 0, 0
    lock = threading.Lock()

    def work(number: int) -> int:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
            done.append(number)
        time.sleep(0.01)
        with lock:
            at_once -= 1
        return -number

    async def main() -> list[int]:
        line = WorkQueue(workers=2, queue=10)
        try:
            return await asyncio.gather(
                *(
                    line.run(lambda k=k: work(k), until=soon(FOREVER), gone=never())
                    for k in range(9)
                )
            )
        finally:
            assert idle(line)
            assert await nothing_runs_on()
            line.close()

    assert asyncio.run(main()) == [-k for k in range(9)]
    assert most == 2
    assert sorted(done) == [*range(9)]
    assert all(abs(place - number) <= 1 for place, number in enumerate(done))


def test_as_many_as_there_are_places_come_in():
    line = WorkQueue(workers=1, queue=2)

    with line.place(), line.place(), line.place():
        with pytest.raises(Full) as full, line.place():
            pass
        assert line.inside == 3

    assert line.inside == 0
    assert full.value.seconds == 3  # of a second each, as long as nothing is known


def test_seconds_to_come_back_follow_what_work_takes():
    async def main() -> WorkQueue:
        line = WorkQueue(workers=1, queue=0)
        for _ in range(60):
            await line.run(lambda: None, until=soon(FOREVER), gone=never())
        line.close()
        return line

    line = asyncio.run(main())

    with line.place(), pytest.raises(Full) as full, line.place():
        pass
    assert full.value.seconds == 1
    assert line._mean < 1


def test_no_thread_is_left():
    before = threading.active_count()

    async def main() -> None:
        line = WorkQueue(workers=3, queue=3)
        await asyncio.gather(
            *(line.run(lambda: None, until=soon(FOREVER), gone=never()) for _ in range(9))
        )
        line.close()

    asyncio.run(main())

    assert threading.active_count() == before


def test_an_error_of_the_work_is_the_callers_and_costs_no_thread():
    async def main() -> None:
        line = WorkQueue(workers=1, queue=0)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await line.run(lambda: 1 // 0, until=soon(FOREVER), gone=never())
        assert await line.run(lambda: 7, until=soon(FOREVER), gone=never()) == 7
        assert idle(line)
        line.close()

    asyncio.run(main())


@few
@given(st.lists(st.sampled_from(["stays", "leaves", "is late", "is cancelled"]), max_size=12))
def test_whoever_leaves_is_late_or_is_cancelled_gives_the_turn_back(fates: list[str]):
    """All at once behind a thread that is busy: those who stay are served, the others never."""
    served: list[int] = []

    async def one(line: WorkQueue, number: int, fate: str) -> None:
        gone = asyncio.sleep(0.001) if fate == "leaves" else never()
        until = soon(0.001 if fate == "is late" else FOREVER)
        await line.run(lambda: served.append(number), until=until, gone=gone)

    async def main() -> list[BaseException | None]:
        line, door = WorkQueue(workers=1, queue=20), threading.Event()
        busy = asyncio.create_task(line.run(door.wait, until=soon(FOREVER), gone=never()))
        await asyncio.sleep(0)
        tasks = [asyncio.create_task(one(line, k, fate)) for k, fate in enumerate(fates)]
        await asyncio.sleep(0.02)
        for task, fate in zip(tasks, fates, strict=True):
            if fate == "is cancelled":
                task.cancel()
        door.set()
        await busy
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert idle(line)
        line.close()
        return results

    results = asyncio.run(main())

    ends = {"leaves": ClientGone, "is late": DeadlinePassed, "is cancelled": asyncio.CancelledError}
    assert served == [k for k, fate in enumerate(fates) if fate == "stays"]
    for fate, result in zip(fates, results, strict=True):
        assert result is None if fate == "stays" else isinstance(result, ends[fate])
