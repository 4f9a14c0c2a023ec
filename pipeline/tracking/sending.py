"""Sends trainings to a sink, each as one run, once or as they go on."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pipeline.tracking import trainings
from pipeline.tracking.interface import Run, Sink
from pipeline.tracking.results import results
from pipeline.tracking.trainings import Identity, Training
from rrcm.core.errors import RrcmError


@dataclass(kw_only=True)
class Live:
    """A training that is being sent while it runs, and its last step that was sent."""

    run: Run
    training: Training
    step: int


class Sender:
    """Sends the trainings that `wanted` accepts; used as a context, it closes all runs at its end.

    Guarantee: only what a training has saved is sent, so that one which is interrupted and resumes
    has each step once.
    """

    def __init__(
        self, sink: Sink, wanted: Callable[[str], bool], say: Callable[[str], None]
    ) -> None:
        """Send to ``sink`` the stages that are ``wanted``, with a line to ``say`` for each."""
        self._sink, self._wanted, self._say = sink, wanted, say
        self._live: dict[str, Live] = {}
        self._sent: dict[Identity, dict[str, float]] = {}
        self._warned: set[str] = set()

    @contextmanager
    def closing(self) -> Iterator["Sender"]:
        """Close the runs that are open at the end of the block, whatever ends it."""
        try:
            yield self
        finally:
            for one in self._live.values():
                one.run.close()
            self._live.clear()

    def finished(self, but: Collection[str] = (), *, again: bool = False) -> None:
        """Send the finished trainings that have not been sent.

        Args:
            but: Stages to leave out, because they run now.
            again: Also send those whose results have changed since they were sent.

        Raises:
            RrcmError: A file is missing or damaged.
        """
        for identity in trainings.finished():
            if identity.stage in but or not self._wanted(identity.stage):
                continue
            if identity in self._sent and not again:
                continue
            summary, others = results(identity)
            if self._sent.get(identity) != summary:
                self._finish(identity, summary)
                self._tell(others)
            self._sent[identity] = summary

    def running(self, stages: Collection[str]) -> None:
        """Send what the ``stages`` have saved since the last call; one that is new is begun.

        Those that were begun before and no longer run, and whose outputs are not here, are closed.
        """
        for stage in stages:
            if self._wanted(stage):
                self._go_on(stage)
        for stage in self._live.keys() - {*stages}:
            one = self._live.pop(stage)
            one.run.close()
            self._say(f"{stage}: ended before its last step; {one.step} is the last one sent")

    def _finish(self, identity: Identity, summary: dict[str, float]) -> None:
        training, one = trainings.read(identity), self._live.pop(identity.stage, None)
        if one and one.training.identity != identity:  # other inputs: it was stopped, and edited
            one.run.close()
            one = None
        run = one.run if one else self._sink.begin(identity, training.parameters)
        try:
            sent = [run.scalars(*row) for row in training.rows if not one or row[0] > one.step]
            run.end(summary)
        finally:
            run.close()
        self._say(
            f"{identity.stage}: {sum(sent)} rows, {len(summary)} results"
            if any(sent) or identity not in self._sent
            else f"{identity.stage}: {len(summary)} results"
        )

    def _go_on(self, stage: str) -> None:
        one = self._live.get(stage)
        try:
            training = trainings.saved(one.training) if one else trainings.running(stage)
        except RrcmError as error:  # its inputs may just be edited: no reason to end the others
            if stage not in self._warned:
                self._say(f"{stage}: not followed ({error})")
            self._warned.add(stage)
            return
        if training is None or not training.rows:
            return
        if one is None:
            run = self._sink.begin(training.identity, training.parameters)
            one = self._live[stage] = Live(run=run, training=training, step=-1)
            self._say(f"{stage}: follows it from step {training.rows[0][0]}")
        for step, values in training.rows:
            if step > one.step:
                one.run.scalars(step, values)
                one.step = step
        one.run.flush()

    def _tell(self, others: Collection[str]) -> None:
        for path in others:
            self._say(f"{path}: not sent: it is not of this training; `dvc repro report` renews it")
