"""Processes that outlive what started them, found by an environment variable that they inherit."""

import os
import time
import uuid
from collections.abc import Callable
from typing import TypeVar

import psutil

MARK = "RRCM_TEST_MARK"
T = TypeVar("T")


def mark() -> dict[str, str]:
    """An environment variable by which `marked` finds those who got it, and theirs."""
    return {MARK: uuid.uuid4().hex}


def marked(environment: dict[str, str]) -> list[psutil.Process]:
    """All living processes that have it."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == environment[MARK] and process.pid != os.getpid():
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            pass
    return [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def until(what: Callable[[], T], *, seconds: float = 600) -> T:
    """What ``what`` says once it says anything, in time."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found
