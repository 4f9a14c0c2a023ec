"""The options of every command that asks a classifier, once; imports nothing heavy."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

from rrcm.errors import RrcmError

Command = Callable[..., None]

NETWORK: dict[str, tuple[type, str]] = {
    "model": (str, "A model of params.yaml, trained at SIGMA."),
    "method": (str, "A method of params.yaml; rrcm."),
    "eval_sigma": (float, "Smooth a model with another sigma."),
    "onnx": (str, "Or: anybody's ONNX file."),
    "timm": (str, "Or: a network of timm."),
    "weights": (Path, "Of a timm network; those that timm has."),
}
FUNCTION: dict[str, tuple[type, str]] = {
    "classes": (Path, "Names of the outputs, one in a line."),
    "size": (str, "Of pictures, as 224 or HxW; the network's own."),
    "channels": (int, "Of an ONNX file that leaves them open: 1 or 3; 3."),
    "resize": (str, "exact, squash or crop, before the noise; crop."),
    "mean": (str, "Of channels in [0, 1], as .485,.456,.406; 0."),
    "std": (str, "Of channels, as .229,.224,.225; 1."),
    "output": (str, "The ONNX output that is the scores."),
    "batch_size": (int, "Rows of a batch; that of params.yaml."),
    "n": (int, "Noisy draws an image; that of params.yaml."),
    "alpha": (float, "Failure probability; that of params.yaml."),
}
DRAWS: dict[str, tuple[type, str]] = {
    "stop": (str, "When to stop drawing: a rule of params.yaml's stopping; its sample.stop."),
    "radii": (str, "Radii to decide, such as 0,0.25,0.5; those of params.yaml."),
    "seed": (int, "Seed of the noise; of picture files a fresh one, of test images params.yaml's."),
}


@contextmanager
def naming(given: Iterable[str]) -> Iterator[None]:
    """Errors of the block name an option of ``given`` where they name the key that it overrides.

    ``n: …`` at the beginning, ``at n = …``, ``sample.n`` and ``certify.n`` become ``--n``. An error
    of params.yaml itself, which begins with its name, is left as it is.
    """
    try:
        yield
    except RrcmError as error:
        text = str(error)
        if text.startswith("params.yaml"):
            raise
        for key in given:
            flag = f"--{key.replace('_', '-')}"
            places = rf"^{key}(?=: )|(?<=\bat ){key}(?= = )|\b(?:sample|certify|report)\.{key}\b"
            text = re.sub(places, flag, text)
        error.args = (text,)
        raise


def asks(option: Callable[..., Any], *, draws: bool = True) -> Callable[[Command], Command]:
    """Give a command the options NETWORK, ahead of its own, and FUNCTION, in place of ``_``.

    And DRAWS behind these, unless the command decides itself how to draw.

    They are in the ``context.params`` of the command, for `requests.resolve`; ``option(help=…)``
    makes one of them. Errors name the options that were given, as `naming` does.
    """

    def shared(options: dict[str, tuple[type, str]]) -> list[Parameter]:
        return [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[kind | None, option(help=text)],
            )
            for name, (kind, text) in options.items()
        ]

    def decorated(command: Command) -> Command:
        found = signature(command).parameters.values()
        own = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in found]
        first = next(i for i, parameter in enumerate(own) if parameter.default is not own[0].empty)
        place = next(i for i, parameter in enumerate(own) if parameter.name == "_")

        @wraps(command)
        def _command(**given: Any) -> None:
            with naming(key for key, value in given.items() if value is not None):
                command(**{parameter.name: given.get(parameter.name) for parameter in own})

        before, between, after = own[:first], own[first:place], own[place + 1 :]
        _command.__signature__ = Signature(
            [
                *(*before, *shared(NETWORK), *between, *shared(FUNCTION)),
                *(*(shared(DRAWS) if draws else ()), *after),
            ]
        )
        return _command

    return decorated
