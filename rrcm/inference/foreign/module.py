"""Backend for a PyTorch network in memory, as it is, and such a network from a user's own file."""

import importlib.util
import sys
import traceback
from pathlib import Path

from torch import nn

from rrcm.config.foreign import Foreign
from rrcm.core import formats
from rrcm.core.errors import BackendError, ConfigError, one_line
from rrcm.core.registry import suggest
from rrcm.data.splits.pictures import Fit
from rrcm.inference.foreign import _network

# What code may raise
FAILS = (*_network.NOT_COPIED, ImportError, SyntaxError, NameError, ArithmeticError)


class Backend(_network.Backend):
    """A network as it is, or one that `own` makes, on ``device``; for pictures of their size."""

    def __init__(self, foreign: Foreign, *, device: str = "cpu") -> None:
        """Raises as `own`, and ConfigError if no size is given."""
        network = foreign.source
        if not isinstance(network, nn.Module):
            network = own(network).to(device)
        if foreign.size is None:
            raise ConfigError("--module: give the --size of pictures, as 32, or shape=(3, 32, 32)")
        shape = (foreign.channels or 3, *foreign.size)
        super().__init__(network, foreign, fit=Fit(shape=shape, resize="crop", keep=True))


def own(place: str) -> nn.Module:
    """The network that a function makes, ``FILE.py:FUNCTION``; executes the file, as Python does.

    Raises:
        ConfigError: ``place`` is of another form.
        BackendError: There is no such file or function, it fails, or it returns no network.
    """
    file, _, function = place.rpartition(":")
    if not file.endswith(".py") or not function.isidentifier():
        raise ConfigError(f"expected FILE.py:FUNCTION, as net.py:make_net, got {place!r}")
    path = Path(file).resolve()
    if not path.is_file():
        raise BackendError(formats.missing(file, "no such file"))
    spec = importlib.util.spec_from_file_location(f"own_{path.stem}", path)
    assert spec and spec.loader  # of every .py file
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # files beside it
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, function):
            maybe = suggest(function, [*vars(module)])
            raise BackendError(f"{place}: the file has no such function.{maybe}")
        network = getattr(module, function)()
    except FAILS as error:
        traced = traceback.extract_tb(error.__traceback__)
        lines = [f" (line {at.lineno})" for at in traced if at.filename == str(path)]
        text = f"{type(error).__name__}: {one_line(error)}"
        raise BackendError(f"{place}: {text}{''.join(lines[-1:])}") from error
    if not isinstance(network, nn.Module):
        kind = type(network).__name__
        raise BackendError(f"{place}: returns {kind}, not a network (torch.nn.Module)")
    return network
