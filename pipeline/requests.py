"""What a user asks for on the command line, resolved against params.yaml; imports nothing heavy."""

import dataclasses
from pathlib import Path

from rrcm import config
from rrcm.config import Eval, Params
from rrcm.errors import BackendError, ConfigError
from rrcm.registry import suggest


def resolve(
    model: str,
    method: str,
    sigma: float,
    *,
    eval_sigma: float | None,
    n: int | None,
    alpha: float | None,
    subset: str | None = None,
) -> tuple[Eval, Params]:
    """The evaluation that a user asks for, and params.yaml with what the user overrides.

    Raises:
        ConfigError: No such run, or settings under which nothing could be certified.
        BackendError: The run has not been trained and exported here; says how to get it.
    """
    params = config.load()
    run = find_run(params, model=model, method=method, sigma=sigma)
    evaluation = Eval(run=run, sigma=sigma if eval_sigma is None else eval_sigma)
    asked = {"n": n, "subset": subset}
    changed = {key: value for key, value in asked.items() if value is not None}
    params = dataclasses.replace(
        params,
        sample=dataclasses.replace(params.sample, **changed),
        certify=params.certify
        if alpha is None
        else dataclasses.replace(params.certify, alpha=alpha),
    )
    if not Path(f"onnx/{run}.onnx").exists():
        raise BackendError(
            f"onnx/{run}.onnx is not here; make it with `dvc repro export@{run}`, or fetch it from "
            f"a remote with `dvc pull onnx/{run}.onnx shards`"
        )
    return evaluation, params


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
