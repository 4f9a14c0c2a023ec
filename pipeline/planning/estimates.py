"""Time, memory and disk of a stage: its work by the speed of the devices."""

from dataclasses import dataclass

from pipeline.planning.devices import Gpus, Processor
from pipeline.planning.work import Work
from rrcm.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """One stage on given devices; None where nothing was counted.

    ``seconds`` are of the stage alone on ``devices`` of them, ``memory`` is in bytes on each, and
    ``how`` is where the speed comes from.
    """

    work: Work
    devices: int
    seconds: float | None
    memory: float | None
    how: str


def estimate(work: Work, on: Gpus | Processor) -> Estimate:
    """The estimate of a stage.

    Raises:
        ConfigError: The stage asks for more devices than there are.
    """
    if isinstance(on, Gpus) and work.devices > on.count:
        raise ConfigError(
            f"{work.name}: compute.devices is {work.devices}, and there are {on.count} of {on.name}"
        )
    used = on.count if work.devices == 0 else min(work.devices, on.count)
    if not work.operations:
        return Estimate(work=work, devices=used, seconds=None, memory=None, how="")
    rate = on.rate(work)
    started = work.kernels * on.launch if isinstance(on, Gpus) else 0.0
    return Estimate(
        work=work,
        devices=used,
        seconds=max(work.operations / (rate.value * used), started),
        memory=work.memory(used),
        how=rate.how,
    )
