"""Metrics of a server for Prometheus, in a registry of its own for each application."""

from importlib.metadata import version
from typing import Any, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.exposition import choose_encoder
from torch import Tensor

from rrcm.certification.sampling import voting
from rrcm.certification.sampling.voting import Backend
from rrcm.certification.smoothed import Smoothed
from rrcm.serving.queue import BodyMemory, WorkQueue
from rrcm.serving.schemas import Reply

ENDPOINTS = ("/certify", "/health", "/model", "/metrics", "/docs", "/openapi.json")
OTHER = "other"  # stands for every other path, so that clients cannot add series
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0)


class Metrics:
    """Counters, gauges and histograms; they may be changed on any thread."""

    def __init__(self, smoothed: Smoothed, *, name: str, line: WorkQueue, held: BodyMemory) -> None:
        """Start at zero; ``line`` and ``held`` are read whenever the metrics are."""
        own = self.registry = CollectorRegistry()
        self._requests = Counter(
            "rrcm_requests_total", "Requests answered.", ["endpoint", "status"], registry=own
        )
        self._images = Counter(
            "rrcm_images_total", "Pictures answered, abstentions included.", registry=own
        )
        self._abstentions = Counter(
            "rrcm_abstentions_total", "Pictures answered by an abstention.", registry=own
        )
        self._draws = Counter("rrcm_draws_total", "Draws that count in answers.", registry=own)
        self._rows = Counter(
            "rrcm_batch_rows_total", "Rows of batches that the network classified.", registry=own
        )
        self.waited = Histogram(
            "rrcm_queue_seconds",
            "Seconds from a place in the queue to the start of the work.",
            buckets=SECONDS,
            registry=own,
        )
        self.drawing = Histogram(
            "rrcm_drawing_seconds",
            "Seconds from the first draw of a picture to its answer.",
            buckets=SECONDS,
            registry=own,
        )
        for gauge, said, value in (
            ("queue_length", "Pictures that wait for a thread.", line.waiting),
            ("queue_places", "Pictures that may wait.", lambda: line.places - line.workers),
            ("computing", "Pictures being computed.", lambda: line.working),
            ("held_bytes", "Bytes in memory of the bodies of requests.", lambda: held.bytes),
        ):
            Gauge(f"rrcm_{gauge}", said, registry=own).set_function(value)
        Info("rrcm_build", "The version, and what it serves.", registry=own).info(
            {
                "version": version("rrcm"),
                "model": name,
                "weights": smoothed.backend.weights,
                "sigma": f"{smoothed.sigma:g}",
            }
        )

    def request(self, path: str, status: int) -> None:
        """Count a request that was answered."""
        self._requests.labels(path if path in ENDPOINTS else OTHER, str(status)).inc()

    def answer(self, reply: Reply) -> None:
        """Count an answer and its draws."""
        self._images.inc()
        self._abstentions.inc(reply.abstained)
        self._draws.inc(reply.draws)

    def counted(self, backend: Backend) -> Backend:
        """``backend``, whose rows are counted."""
        return cast(Backend, CountedBackend(backend, self._rows))

    def text(self, accepted: str) -> tuple[bytes, str]:
        """All metrics, and the content type; ``accepted`` is the ``Accept`` of the request."""
        encode, kind = choose_encoder(accepted)
        return encode(self.registry), kind


class CountedBackend:
    """A backend that counts the rows it classifies; its scores are those of ``backend``."""

    def __init__(self, backend: Backend, rows: Counter) -> None:
        """Wrap ``backend``."""
        self._backend, self._rows = backend, rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def scores(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """See `rrcm.certification.sampling.voting.Backend`."""
        self._rows.inc(len(x))
        return voting.scores_of(self._backend, x, z)
