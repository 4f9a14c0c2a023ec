"""Finds a run of params.yaml by its values, or else the presets that have such a run."""

import math
from contextlib import suppress
from pathlib import Path

from rrcm.config.params import Params, load
from rrcm.core.errors import ConfigError
from rrcm.core.registry import suggest

PRESETS = Path("presets")


def find_run(
    params: Params, *, model: str, method: str, sigma: float, eval_sigma: float | None = None
) -> str:
    """Return the name of the run with these values; sigmas are compared as numbers.

    ``model`` may also be the name of a run or of an ensemble, with or without sigma at its end.
    ``eval_sigma`` is the noise to smooth it with, by default that of its training.

    Raises:
        ConfigError: There is none; names the presets that have one, or the nearest values.
    """
    if found := _matching(params, model, method, sigma):
        return found
    ways = []
    if levels := _levels(params, model, method):
        near = min(levels, key=lambda level: abs(math.log(level / sigma)))
        noise = sigma if eval_sigma is None else eval_sigma
        smooth = "" if noise == near else f" --eval-sigma {noise:g}"
        ways += [f"`--sigma {near:g}{smooth}` smooths the one trained at {near:g} with {noise:g}"]
    whole = _presets()
    having = {name: _matching(preset, model, method, sigma) for name, preset in whole.items()}
    if runs := {name: run for name, run in having.items() if run}:
        (name, run), *others = runs.items()
        same = [other for other, its in others if its == run]
        more = f" (or {', '.join(same)})" if same else ""
        ways += [
            f"`rrcm preset {name}`{more} has one trained at {sigma:g}: `dvc repro "
            f"{whole[name].maker(run)}` then makes it, or `rrcm pull {run}` where a remote has it"
        ]
    if not ways:
        offered = {name: _levels(preset, model, method) for name, preset in whole.items()}
        ways = [
            f"`rrcm preset {name}` has it at sigma = {_listed(levels)}"
            for name, levels in offered.items()
            if levels
        ]
    raise ConfigError("; ".join([_lacking(params, model, method, sigma), *ways]))


def _matching(params: Params, model: str, method: str, sigma: float) -> str | None:
    found = params.classifiers()
    for name, run in found.items():
        if (run.model, run.method, run.sigma) == (model, method, sigma):
            return name
    for name in (model, f"{model}-s{round(100 * sigma):03d}"):
        if name in found and found[name].sigma == sigma:
            return name
    return None


def _levels(params: Params, model: str, method: str) -> list[float]:
    """Return the sigmas at which there is such a run."""
    known = {run.sigma for run in params.classifiers().values()}
    return sorted(sigma for sigma in known if _matching(params, model, method, sigma))


def _lacking(params: Params, model: str, method: str, sigma: float) -> str:
    """Return what params.yaml lacks, and what it has of the same kind."""
    if levels := _levels(params, model, method):
        return f"params.yaml has {model} {method} at sigma = {_listed(levels)}, not at {sigma:g}"
    runs = params.classifiers().values()
    if methods := sorted({run.method for run in runs if run.model == model}):
        found = (
            f"{model} {method}, only {model} with {', '.join(methods)}",
            suggest(method, methods),
        )
    else:
        models = sorted({run.model for run in runs})
        found = f"model {model!r}, only {', '.join(models)}", suggest(model, models)
    text, hint = found
    return f"params.yaml has no {text}" + (f".{hint}" if hint else "")


def _listed(levels: list[float]) -> str:
    return ", ".join(f"{level:g}" for level in levels)


def _presets() -> dict[str, Params]:
    """Return the complete presets of this checkout."""
    found = {}
    for path in sorted(PRESETS.glob("*.yaml"), key=lambda path: path.stem):
        with suppress(ConfigError):  # a preset that was edited is not the user's concern now
            found[path.stem] = load(path)
    return found
