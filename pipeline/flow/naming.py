"""Titles and tags of runs: model, method and sigma from params.yaml."""

from collections.abc import Iterable, Sequence

from rrcm.config.params import Params

SHOWN = 3  # targets in a title


def tags(stage: str, whole: Params) -> list[str]:
    """Model, method and sigma of a stage such as ``train@tiny-rrcm-s025``, as far as it has them.

    ``sigma`` is that of training; ``eval-sigma`` is that of smoothing, if it differs.
    """
    key = stage.partition("@")[2]
    evaluation = whole.evals.get(key)
    member = whole.members.get(key)
    name = evaluation.run if evaluation else member.run if member else key
    if run := whole.classifiers().get(name):
        found = [f"model:{run.model}", f"method:{run.method}", f"sigma:{run.sigma:g}"]
        if evaluation and evaluation.sigma != run.sigma:
            found.append(f"eval-sigma:{evaluation.sigma:g}")
        return found
    trained = whole.pretrain.get(key) or whole.denoisers.get(key)
    return [f"model:{trained.model}"] if trained else []


def title(targets: Sequence[str], *, force: Sequence[str], whole: Params) -> str:
    """One line that names a run's targets, with model, method and sigma."""
    made = _few(_told(word, whole) for word in targets) or _everything(whole)
    return f"{made}; {_few(force)} in any case" if force else made


def _told(target: str, whole: Params) -> str:
    words = [tag.removeprefix("model:").removeprefix("method:") for tag in tags(target, whole)]
    words = [word.replace("eval-sigma:", "at σ ").replace("sigma:", "σ ") for word in words]
    return " ".join([target.partition("@")[0], *words]) if words else target


def _everything(whole: Params) -> str:
    runs = whole.classifiers().values()
    models = ", ".join(dict.fromkeys(run.model for run in runs))
    methods = ", ".join(dict.fromkeys(run.method for run in runs))
    sigmas = ", ".join(f"{sigma:g}" for sigma in sorted({run.sigma for run in runs}))
    return f"{whole.data.name}: {models}; {methods}; σ {sigmas}" if runs else whole.data.name


def _few(words: Iterable[str]) -> str:
    words = [*words]
    more = f" and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return ", ".join(words[:SHOWN]) + more
