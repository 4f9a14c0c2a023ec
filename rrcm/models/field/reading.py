"""Reads files of training programs: the tensors of one network, without what was around it."""

import re
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from rrcm.core.errors import CheckpointError, ConfigError
from rrcm.core.schema import shown
from rrcm.models import state_dict

LAYERED = "1."  # behind a layer that normalises and has no tensors, in an nn.Sequential
PREFIXES = ("module.", "model.", "_orig_mod.", LAYERED)  # of parameter names, added by wrappers
KEYS = (  # of files of training programs: those of timm's loader in its order, then others
    *("state_dict_ema", "model_ema", "state_dict", "model"),
    *("model_state_dict", "ema", "ema_state_dict", "ema_model", "net", "best", "last"),
    *("swa_state_dict", "swa_model", "swa", "avg_state_dict", "averaged_model"),
)
AVERAGED = "n_averaged"  # PyTorch's AveragedModel counts in it
# Buffers of wrappers.
STATISTICS = re.compile(r"(?:0\.|normali[sz]er?\.)?(?:new_)?(?:(mean|mu)|std|sigma)")
CHANNELS = 4  # at most
Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean and std of each channel
ATTACKER = "attacker."  # in files of the library robustness: the network and its buffers once more


class Read(NamedTuple):
    """The tensors of a network under its own names, and what was ``found`` beside them.

    ``mean`` and ``std`` are buffers that a wrapper normalised by, () if there are none; ``layered``
    is whether the network lay behind a layer without tensors. ``notes`` say which of several state
    dicts was taken.
    """

    tensors: dict[str, Tensor]
    found: state_dict.Found
    mean: tuple[float, ...]
    std: tuple[float, ...]
    layered: bool
    notes: tuple[str, ...]

    @property
    def wrapped(self) -> bool:
        """Whether a wrapper normalised pixels before the network."""
        return bool(self.mean or self.std) or self.layered

    @property
    def shown(self) -> Statistics:
        """The mean and std of wrappers, or else the lists of these names in options; or ()."""
        listed = (_listed(self.found.options.get(name)) for name in ("mean", "std"))
        return (self.mean, self.std) if self.mean or self.std else (next(listed), next(listed))

    def statistics(self, path: Path) -> Statistics | None:
        """Those that are `shown`, or None.

        Raises:
            ConfigError: They do not fit each other.
        """
        mean, std = self.shown
        if len(mean) != len(std):
            raise ConfigError(
                f"{path}: its own mean {shown(mean)} and std {shown(std)} do not fit each other; "
                "give --mean and --std"
            )
        return (mean, std) if mean else None


def read(path: Path) -> Read:
    """The network in ``path``; if it has several, that of timm's loader: averaged ones first.

    Guarantee: as of `state_dict.find`, nothing in the file is executed.

    Raises:
        CheckpointError: The file is missing, damaged, or holds no state dict, or two buffers that
            may be the mean, or the std.
    """
    found = state_dict.find(path, KEYS, hint=f"the weights may lie under {', '.join(KEYS)}")
    state, layered, prefix = found.tensors, False, ""
    state.pop(AVERAGED, None)
    statistics: dict[bool, tuple[str, tuple[float, ...]]] = {}  # by whether it is a mean: its name
    while state and all(name.startswith(prefix) for name in state):
        state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
        layered |= prefix == LAYERED
        state = {name: t for name, t in state.items() if not _again(name, t, state)}
        for name in [*state]:
            match = STATISTICS.fullmatch(name)
            if match and 0 < state[name].numel() <= CHANNELS:
                kind = bool(match[1])
                if kind in statistics:
                    other, _ = statistics[kind]
                    raise CheckpointError(f"{path}: {other} and {name} are two of one statistic")
                statistics[kind] = name, tuple(state.pop(name).flatten().tolist())
        prefix = next((p for p in PREFIXES if all(name.startswith(p) for name in state)), "\0")
    taken, others = (" and ".join(keys) for keys in (found.keys, found.others))
    note = f"{path}: {taken} was taken, as by timm's loader, and not {others}"
    note += "; to certify that, save it in a file of its own"
    (_, mean), (_, std) = (statistics.get(kind, ("", ())) for kind in (True, False))
    return Read(state, found, mean, std, layered, (note,) if others else ())


def _listed(value: object) -> tuple[float, ...]:
    """The numbers of channels that an option lists; () for any other value."""
    value = value.flatten().tolist() if isinstance(value, Tensor) else value
    numbers = value if isinstance(value, list | tuple) and len(value) <= CHANNELS else ()
    return tuple(map(float, numbers)) if all(isinstance(v, int | float) for v in numbers) else ()


def _again(name: str, tensor: Tensor, state: dict[str, Tensor]) -> bool:
    """Whether a tensor is an `ATTACKER`'s, and its network has the same."""
    inner = name.removeprefix(ATTACKER).replace("normalize.", "normalizer.")
    return name.startswith(ATTACKER) and inner in state and torch.equal(tensor, state[inner])
