"""Classifiers of params.yaml by their values: the one that `--model` means, or who else has it."""

import dataclasses
import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rrcm.cli.classifiers import Opened, note
from rrcm.cli.options import Options
from rrcm.cli.requests import AUTO, PRECISIONS
from rrcm.config.certification import Eval, Sampling, noise_level
from rrcm.config.params import Params, load
from rrcm.core.errors import BackendError, ConfigError, DataError
from rrcm.core.ranges import require
from rrcm.core.registry import suggest

if TYPE_CHECKING:  # PyTorch takes seconds
    from rrcm.certification.smoothed import Smoothed
    from rrcm.data.splits.shards import Split

PRESETS = Path("presets")
SHARDS = Path("shards")
SHOWN = 3  # ways of drawing that were not chosen, and indices of images


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A run of params.yaml, smoothed at the sigma of ``evaluation``.

    ``trained_at`` is the sigma of its training if that differs, else None. ``votes`` are the files
    in which the graph keeps votes of such an evaluation. With ``precisions``, what is fastest of
    them takes the place of the precision, the backend and the batch size of the draws, as far as
    ``options`` leave them open.
    """

    evaluation: Eval
    trained_at: float | None
    votes: tuple[Path, ...]
    options: Options
    precisions: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.evaluation.run

    def classifier(self, draws: Sampling, *, max_value: int | None = None) -> "Smoothed":
        """Open the run; refuse a file that was made for another one, and note other differences."""
        from pipeline.project import differences
        from pipeline.project.stale import Present
        from rrcm.certification.sampling import drawing
        from rrcm.certification.smoothed import Smoothed
        from rrcm.data.splits import shards
        from rrcm.data.splits.pictures import MAX_VALUE

        fit = shards.fit(shards.read_index(SHARDS / draws.split))
        if self.precisions:
            from rrcm.certification import fastest  # it needs the extra that runs ONNX files

            choice = fastest.choose(
                self.evaluation,
                draws,
                fit.shape,
                precisions=self.precisions,
                backend=self.options.backend,
                batch_size=self.options.batch_size,
            )
            draws, (best, *others) = choice[0], map(str, choice[1])
            also = f"; {'; '.join(others[:SHOWN])}" if others else ""
            note(f"--precision auto: {best} noisy images/s{also}")
        present = Present()
        if changed := present.asked(self.name, backend=draws.backend).stale:
            remake = f"rrcm repro {present.params.maker(self.name)}"
            note(differences.line(self.name, changed, remake))
        return Smoothed(
            drawing.backend(self.evaluation, draws),
            shape=fit.shape,
            draws=draws,
            fit=fit,
            max_value=max_value or MAX_VALUE,
            trained=Path("models", self.name),
        )

    def opened(self, draws: Sampling) -> Opened:
        """Open the run and the split that it is certified on."""
        from rrcm.data.splits import shards

        split = shards.read(SHARDS, draws.split)
        if self.trained_at is not None:
            note(f"{self.name} was trained at sigma = {self.trained_at:g}")
        smoothed = self.classifier(draws, max_value=split.max_value)
        return Opened(name=self.name, smoothed=smoothed, split=split, votes=self.votes)

    def known_image(self, name: str) -> "Split | None":
        """Return a test image by its index in the raw data."""
        from rrcm.data.splits import shards

        if not name.isdecimal():
            return None
        split = shards.read(SHARDS, "test")
        known = split.idx.tolist()
        if int(name) not in known:
            some = ", ".join(map(str, known[:5]))
            raise DataError(f"--image {name}: not a test image; test images are {some}, …")
        place = [known.index(int(name))]
        only = {key: getattr(split, key)[place] for key in ("idx", "images", "labels")}
        return dataclasses.replace(split, **only)


def trained(params: Params, options: Options) -> Trained:
    """Return the run that the options of a command name, and the sigma to smooth it with.

    Raises:
        ConfigError: There is no such run, a sigma is out of range, or --allow names no precision,
            or does not go with --precision.
        BackendError: It has not been trained and exported here; the message says how to get it.
    """
    sigma = options.sigma
    noise = sigma if options.eval_sigma is None else options.eval_sigma
    noise_level(sigma, name="--sigma")
    noise_level(noise, name="--eval-sigma")
    run = find_run(
        params,
        model=options.model or "",
        method=options.method or "rrcm",
        sigma=sigma,
        eval_sigma=noise,
    )
    if not Path(f"onnx/{run}.onnx").exists():
        raise BackendError(
            f"onnx/{run}.onnx is not here; make it with `rrcm repro {params.maker(run)}`, or fetch "
            f"it from a remote with `rrcm pull {run}`"
        )
    architecture = params.classifiers()[run].architecture
    evaluation = Eval(run=run, architecture=architecture, sigma=noise)
    return Trained(
        evaluation=evaluation,
        trained_at=None if sigma == noise else sigma,
        votes=tuple(Path(f"votes/{k}.jsonl") for k, e in params.evals.items() if e == evaluation),
        options=options,
        precisions=_allowed(options),
    )


def _allowed(options: Options) -> tuple[str, ...]:
    """Return what --precision auto may choose from; nothing if another precision was given."""
    named = tuple(options.allow.split(",")) if options.allow else ()
    for name in named:
        require(
            name in PRECISIONS,
            f"--allow: expected some of {', '.join(PRECISIONS)}, got {name!r}."
            f"{suggest(name, [*PRECISIONS])}",
        )
    if options.precision != AUTO:
        require(not named, "--allow: goes with --precision auto only")
        return ()
    return tuple(sorted({PRECISIONS[0], *named}))


def find_run(params: Params, *, model: str, method: str, sigma: float, eval_sigma: float) -> str:
    """Return the name of the run with these values; sigmas are compared as numbers.

    ``model`` may also be the name of a run or of an ensemble, with or without sigma at its end.
    ``eval_sigma`` is the noise to smooth it with.

    Raises:
        ConfigError: There is no such run; names presets that have one, or the nearest values.
    """
    if match := _matching(params, model, method, sigma):
        return match
    known = {run.sigma for run in params.classifiers().values()}
    if levels := sorted(level for level in known if _matching(params, model, method, level)):
        listed = ", ".join(f"{level:g}" for level in levels)
        near = min(levels, key=lambda level: abs(math.log(level / sigma)))
        smooth = "" if eval_sigma == near else f" --eval-sigma {eval_sigma:g}"
        ways = [
            f"params.yaml has {model} {method} at sigma = {listed}, not at {sigma:g}",
            f"`--sigma {near:g}{smooth}` smooths the one trained at {near:g} with {eval_sigma:g}",
        ]
    else:
        ways = [_lacking(params, model, method)]
    for name, preset in presets().items():
        if run := _matching(preset, model, method, sigma):
            ways.append(
                f"`rrcm preset {name}` has one trained at {sigma:g}: `rrcm repro "
                f"{preset.maker(run)}` then makes it, or `rrcm pull {run}` where a remote has it"
            )
            break
    raise ConfigError("; ".join(ways))


def _matching(params: Params, model: str, method: str, sigma: float) -> str | None:
    runs = params.classifiers()
    for name, run in runs.items():
        if (run.model, run.method, run.sigma) == (model, method, sigma):
            return name
    for name in (model, f"{model}-s{round(100 * sigma):03d}"):
        if name in runs and runs[name].sigma == sigma:
            return name
    return None


def _lacking(params: Params, model: str, method: str) -> str:
    """Return the message about a model or a method that no run has."""
    runs = params.classifiers().values()
    if methods := sorted({run.method for run in runs if run.model == model}):
        known = f"{model} {method}, only {model} with {', '.join(methods)}"
        hint = suggest(method, methods)
    else:
        models = sorted({run.model for run in runs})
        known, hint = f"model {model!r}, only {', '.join(models)}", suggest(model, models)
    return f"params.yaml has no {known}" + (f".{hint}" if hint else "")


def presets() -> dict[str, Params]:
    """Return the complete presets of this checkout."""
    complete = {}
    for path in sorted(PRESETS.glob("*.yaml"), key=lambda path: path.stem):
        with suppress(ConfigError):  # an invalid preset is no reason to fail here
            complete[path.stem] = load(path)
    return complete
