"""Names the extra of this package that brings a package which is not installed."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from rrcm.core.errors import ConfigError

RUNTIMES = "cpu", "gpu"  # one of the two: they install the same files
EXTRAS = {  # module that is imported somewhere: the extras that bring it, as in pyproject.toml
    **dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), RUNTIMES),
    **dict.fromkeys(("sklearn", "webdataset"), ("train",)),
    "diffusers": ("diffusion",),
    "foolbox": ("attack",),
    **dict.fromkeys(("fastapi", "fastapi_offline", "prometheus_client"), ("serve",)),
    **dict.fromkeys(("pydantic", "starlette", "uvicorn"), ("serve",)),
    **dict.fromkeys(("dvc", "httpx", "prefect"), ("flow",)),
    "dvc_s3": ("s3",),
    **dict.fromkeys(("mlflow", "tensorboard", "wandb"), ("log",)),
}


@contextmanager
def named(what: str) -> Iterator[None]:
    """Refuse, in one line, what imports a package of an extra that is not installed.

    Args:
        what: The command or function that the line begins with.

    Raises:
        ConfigError: The block imports such a package; names the extra. Any other package that is
            missing is an error of the installation and propagates.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRAS or importlib.util.find_spec(module):
            raise
        raise ConfigError(f"{what}: {needed(module)}") from None


def require(module: str) -> None:
    """Raise what importing an absent ``module`` raises, for a package that is run as a program."""
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def needed(module: str) -> str:
    """The sentence that names the extra of a module, and the command that installs it."""
    first, *others = EXTRAS[module]
    also = "".join(f', or "{name}" for an NVIDIA GPU' for name in others)
    return f'needs the extra "{first}"{also}: pip install "rrcm[{first}]"'
