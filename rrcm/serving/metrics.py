"""Metrics of a server for Prometheus, in a registry of its own for each application."""

from collections.abc import Callable
from functools import partial
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from rrcm.certification.smoothed import Smoothed
from rrcm.serving.schemas import Reply

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0)


class Metrics:
    """Counters, gauges and histograms; they may be changed on any thread."""

    def __init__(
        self,
        smoothed: Smoothed,
        *,
        name: str,
        waiting: Callable[[], int],
        computing: Callable[[], int],
    ) -> None:
        """Start at zero; ``waiting`` and ``computing`` are called whenever the metrics are read."""
        own = self.registry = CollectorRegistry()
        self._abstentions = Counter(
            "rrcm_abstentions_total", "Pictures answered by an abstention.", registry=own
        )
        self._draws = Counter("rrcm_draws_total", "Draws that count in answers.", registry=own)
        seconds = partial(Histogram, buckets=SECONDS, registry=own)
        self.waited = seconds(
            "rrcm_queue_seconds", "Seconds from the arrival of a request to the start of its work."
        )
        self.drawing = seconds(
            "rrcm_drawing_seconds", "Seconds from the first draw of a picture to its answer."
        )
        for gauge, meaning, value in (
            ("rrcm_queue_length", "Requests that arrive, or wait for a thread.", waiting),
            ("rrcm_computing", "Requests being computed.", computing),
        ):
            Gauge(gauge, meaning, registry=own).set_function(value)
        Info("rrcm_build", "The version, and what it serves.", registry=own).info(
            {
                "version": version("rrcm"),
                "model": name,
                "weights": smoothed.backend.weights,
                "sigma": f"{smoothed.sigma:g}",
            }
        )

    def answer(self, reply: Reply) -> None:
        """Count an answer and its draws."""
        self._abstentions.inc(reply.abstained)
        self._draws.inc(reply.draws)
