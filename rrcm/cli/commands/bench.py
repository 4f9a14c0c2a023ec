"""``rrcm bench``: how many noisy images per second the engine classifies on this machine."""

import json

from rrcm.certification.speed import throughput


def bench(
    model: str,
    image_size: int | None,
    *,
    repeats: int,
    seconds: float,
    batches: tuple[int, ...],
    as_json: bool,
) -> str:
    """Return the measured rates as a table, or as JSON."""
    measured = throughput.measure(
        model, image_size, repeats=repeats, seconds=seconds, batches=batches
    )
    return json.dumps(measured, indent=2) if as_json else throughput.table(measured)
