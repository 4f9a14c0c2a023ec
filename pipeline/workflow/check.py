"""``rrcm check``: validates all of params.yaml."""

from pipeline import checked
from rrcm.config.params import Params


def check() -> str:
    """Return a summary of params.yaml.

    Raises:
        ConfigError: Something in params.yaml is wrong.
    """
    whole, missing = checked.examined()
    lines = [_contents(whole), *(f"not checked: {component}" for component in missing)]
    lines += [f"not checked: models.{name}: no run has it" for name in _unused(whole)]
    return "\n".join(lines)


def _contents(whole: Params) -> str:
    counts = (
        (len(whole.pretrain), "pre-training"),
        (len(whole.runs), "run"),
        (len(whole.denoisers), "denoiser"),
        (len(whole.ensembles), "ensemble"),
        (len(whole.purified), "purified classifier"),
        (len(whole.evals), "evaluation"),
    )
    found = [f"{count} {noun}{'s' * (count != 1)}" for count, noun in counts if count]
    return f"params.yaml is right: {', '.join(found) or 'nothing to train'}, of {whole.data.name}"


def _unused(whole: Params) -> list[str]:
    """Return the models that no run names, so that no network could check their shape."""
    entries = [*whole.pretrain.values(), *whole.runs.values(), *whole.denoisers.values()]
    return [name for name in whole.models if name not in {entry.model for entry in entries}]
