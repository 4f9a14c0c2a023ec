"""What a user asks for on the command line, resolved against params.yaml; imports nothing heavy."""

import dataclasses
from pathlib import Path

from rrcm import config
from rrcm.config import Eval, Params
from rrcm.errors import BackendError


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
    run = config.find_run(params, model=model, method=method, sigma=sigma)
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
