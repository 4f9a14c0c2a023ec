"""What a user asks for on the command line, resolved against params.yaml; imports nothing heavy."""

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

from rrcm.errors import BackendError, ConfigError
from rrcm.params import Params, load
from rrcm.registry import suggest
from rrcm.settings import Eval

SECONDS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """An evaluation, params.yaml with what the user overrides, and how to go about it.

    ``shard`` is i/k, ``budget`` in seconds or 0 for none, ``devices`` more than this process has.
    """

    evaluation: Eval
    params: Params
    shard: str = "1/1"
    budget: float = 0.0
    devices: tuple[str, ...] = ()


def resolve(
    model: str,
    method: str,
    sigma: float,
    *,
    eval_sigma: float | None,
    alpha: float | None,
    sample: dict[str, object],
    shard: str = "1/1",
    budget: str | None = None,
    devices: str | None = None,
) -> Request:
    """What a user asks for; ``sample`` overrides keys of params.yaml's ``sample``, None does not.

    Raises:
        ConfigError: No such run, or settings under which nothing could be certified.
        BackendError: The run has not been trained and exported here; says how to get it.
    """
    params = load()
    run = find_run(params, model=model, method=method, sigma=sigma)
    evaluation = Eval(
        run=run,
        architecture=params.runs[run].architecture,
        sigma=sigma if eval_sigma is None else eval_sigma,
    )
    changed = {key: value for key, value in sample.items() if value is not None}
    params = dataclasses.replace(
        params,
        sample=dataclasses.replace(params.sample, **changed),
        certify=params.certify
        if alpha is None
        else dataclasses.replace(params.certify, alpha=alpha),
    )
    if params.sample.stop not in params.stopping:
        raise ConfigError(
            f"--stop {params.sample.stop}: not in params.yaml's stopping, only "
            f"{', '.join(params.stopping)}.{suggest(params.sample.stop, [*params.stopping])}"
        )
    if not Path(f"onnx/{run}.onnx").exists():
        raise BackendError(
            f"onnx/{run}.onnx is not here; make it with `dvc repro export@{run}`, or fetch it from "
            f"a remote with `dvc pull onnx/{run}.onnx shards`"
        )
    return Request(
        evaluation=evaluation,
        params=params,
        shard=shard,
        budget=0.0 if budget is None else seconds(budget),
        devices=() if not devices else device_names(devices, shard=shard),
    )


def device_names(text: str, *, shard: str) -> tuple[str, ...]:
    """``0,1`` or ``cpu,cpu`` one by one.

    Raises:
        ConfigError: It is neither, or the work is a shard already.
    """
    names = tuple(text.split(","))
    if not all(name == "cpu" or name.isdecimal() for name in names):
        raise ConfigError(f"--devices: expected GPU numbers or cpu, such as 0,1, got {text!r}")
    if shard != "1/1":
        raise ConfigError(f"--devices: makes shards of its own, and was given --shard {shard}")
    return names


def seconds(text: str) -> float:
    """``90s``, ``10m`` or ``1.5h`` in seconds.

    Raises:
        ConfigError: It is none of these.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if not found or not float(found[1]):
        raise ConfigError(f"--budget: expected a time such as 90s, 10m or 1.5h, got {text!r}")
    return float(found[1]) * SECONDS[found[2]]


def find_run(params: Params, *, model: str, method: str, sigma: float) -> str:
    """The name of the run with these values; sigmas are compared as numbers, so 1 is 1.00.

    Raises:
        ConfigError: There is none; says what there is and how to get it.
    """
    for name, run in params.runs.items():
        if (run.model, run.method, run.sigma) == (model, method, sigma):
            return name
    have = {(run.model, run.method, run.sigma) for run in params.runs.values()}
    listed = ", ".join(f"{m} {k} σ = {s:g}" for m, k, s in sorted(have))
    name = f"{model}-{method}-s{round(100 * sigma):03d}"
    raise ConfigError(
        f"params.yaml has no {model} {method} σ = {sigma:g}, only {listed}."
        f"{suggest(model, sorted({m for m, _, _ in have}))} Add {name} under runs, then make it "
        f"with `dvc repro export@{name}` or fetch it with `dvc pull onnx/{name}.onnx`"
    )
