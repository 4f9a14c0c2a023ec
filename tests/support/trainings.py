"""Trainings, to their end at once or with an interruption."""

from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from rrcm.training.engine.loop import State


def finish(states: Iterable[State]) -> State:
    """The last state of a training."""
    *_, last = states
    return last


def resume(
    begin: Callable[[], State], run: Callable[[State], Iterable[State]], folder: Path, *, at: int
) -> State:
    """Interrupt a training, and go on: to the bytes of the one that is not interrupted."""
    next(state for state in run(begin()) if state.step == at).save(folder / "interrupted")
    torch.manual_seed(666)  # whatever happens in between
    resumed = begin()
    assert resumed.resume(folder / "interrupted")
    finish(run(resumed)).save(folder / "resumed")
    finish(run(begin())).save(folder / "uninterrupted")
    same = (folder / "resumed").read_bytes() == (folder / "uninterrupted").read_bytes()
    assert same, "resuming changed the run"
    return resumed
