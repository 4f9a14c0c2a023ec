"""Makes networks of timm, with timm's pretrained weights or those in a file."""

import math
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import timm
from torch import Tensor, nn

from rrcm.config.foreign import Foreign
from rrcm.core import arguments
from rrcm.core.errors import BackendError, ConfigError, one_line
from rrcm.core.registry import suggest
from rrcm.core.schema import shown
from rrcm.data.splits.pictures import Fit
from rrcm.models.field import reading

OPTIONS: dict[Any, tuple[str, ...]] = {  # of timm's trainer, on a network and its pictures
    tuple[float, ...]: ("mean", "std"),
    tuple[int, ...]: ("input_size", "img_size"),
    float: ("crop_pct", "bn_eps"),
    str: ("interpolation", "gp"),
}
OF_TRAINER = "gp"  # an option that no other program has
OF_TORCH = ("torch/folder", "torch/image_folder")  # data sets, beside timm's own folders


class Opened(NamedTuple):
    """A network, and how its pictures are prepared."""

    network: nn.Module
    fit: Fit
    mean: tuple[float, ...]
    std: tuple[float, ...]
    notes: tuple[str, ...]
    natural: bool = False


def opened(foreign: Foreign) -> Opened:
    """Build the network and load its ``weights``; errors as of the backend of timm."""
    name, weights, size = foreign.source, foreign.weights, foreign.size
    mean, std = foreign.mean, foreign.std
    if not timm.is_model(name):
        known = timm.list_models()
        raise BackendError(f"timm has no {name!r}.{suggest(name.partition('.')[0], known)}")
    state, said = None, dict[str, Any]()
    notes: list[str] = []
    made, natural = name, False
    if weights is not None:
        read = reading.read(weights)
        state, options, notes = read.tensors, read.found.options, [*read.notes]
        made, said = _named(name, weights, options), _said(weights, options)
        if read.wrapped or OF_TRAINER not in options:
            pair = zip(("mean", "std"), read.shown, strict=True)
            said |= {key: value for key, value in pair if value}
            if not (mean or std) and read.statistics(weights) is None and read.layered:
                raise ConfigError(
                    f"{weights}: a layer before the network normalises pixels, and has no tensors "
                    "that show how; give --mean and --std, for ImageNet usually "
                    "--mean 0.485,0.456,0.406 --std 0.229,0.224,0.225"
                )
        for key, value in (("mean", mean), ("std", std), ("size", size)):
            if value and key in said and not _equal(value, said[key]):
                notes.append(f"{weights}: trained with {key} {said[key]}, and not {value}")
        data = str(options.get("dataset") or "")
        natural = OF_TRAINER in options and "/" not in data
        own_order = [] if natural or data in ("", *OF_TORCH) else [data]
        for origin in (*own_order, *filter(None, [options.get("class_map")])):
            notes.append(
                f"{weights}: its classes are in the order of {shown(origin)}; name them so "
                "with --classes"
            )
    size = size or said.get("size")
    network = _build(made, state, weights, size, said).eval()
    own: Any = network.pretrained_cfg
    cfg = own | said
    channels, *sides = own["input_size"]
    channels = _width(state or {}, own["first_conv"], 1) or channels
    crop_pct: float = cfg["crop_pct"] or 0.875
    if ((mode := cfg["crop_mode"]) == "squash" and crop_pct != 1) or mode == "border":
        notes.append(
            f"{name}: timm prepares pictures by crop_mode {mode} at crop_pct {crop_pct}, "
            "which --resize does not: prepare them, at the network's size"
        )
    fit = Fit(
        shape=(channels, *(size or sides)),
        resize="squash" if mode == "squash" else "crop",
        ratio=crop_pct,
        interpolation=cfg["interpolation"],
        keep=True,
    )
    mean, std = mean or _adapted(cfg["mean"], channels), std or _adapted(cfg["std"], channels)
    return Opened(network, fit, mean, std, tuple(notes), natural)


def _build(
    name: str,
    state: dict[str, Tensor] | None,
    path: Path | None,
    size: tuple[int, int] | None,
    said: dict[str, Any],
) -> nn.Module:
    config = timm.get_pretrained_cfg(name) or timm.models.PretrainedCfg()
    shape: dict[str, Any] = {"img_size": size} if size and config.fixed_input_size else {}
    shape |= {"global_pool": said.get("gp"), "bn_eps": said.get("bn_eps")}  # None: its own
    try:
        if state is None:
            return timm.create_model(name, pretrained=True, **shape)
        shape["num_classes"] = _width(state, config.classifier, 0) or None
        shape["in_chans"] = _width(state, config.first_conv, 1) or None
        network = timm.create_model(name, pretrained=False, **shape)
    except (OSError, RuntimeError, ValueError, TypeError, AssertionError) as error:
        hint = "give a file with --weights" if state is None else "is --size one that it takes?"
        raise BackendError(f"timm cannot make {name}: {one_line(error)}; {hint}") from None
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise BackendError(f"{path}: not the weights of {name}: {one_line(error)}") from None
    return network


def _width(state: dict[str, Tensor], layer: object, axis: int) -> int:
    """The length of an axis of a layer's weights; 0 if a file has none of them.

    A tensor without values could claim any amount of memory.
    """
    first = layer[0] if isinstance(layer, tuple) else layer  # of several heads
    weight = state.get(f"{first}.weight")
    return weight.shape[axis] if weight is not None and weight.numel() and weight.ndim > axis else 0


def _named(name: str, path: Path, options: dict[Any, Any]) -> str:
    """The network that a file says it is of, as far as timm has it; else ``name``.

    A tag that was given stays, as it decides how pictures are prepared.
    """
    arch = str(options.get("model", options["arch"])).rpartition("/")[2]
    if not timm.is_model(arch):
        return name
    if arch.partition(".")[0] != name.partition(".")[0]:
        raise BackendError(f"{path}: the weights of {arch}, not of {name}; name that network")
    return name if "." in name else arch


def _said(path: Path, options: dict[Any, Any]) -> dict[str, Any]:
    """What timm's trainer says in a file, by the keys of timm's configuration."""
    if OF_TRAINER not in options:
        return {}
    if isinstance(kwargs := options.get("model_kwargs"), dict) and kwargs:
        raise BackendError(
            f"{path}: its network has the model_kwargs {shown(kwargs)}; build it, load the weights "
            "and pass it to rrcm.smooth"
        )
    said = {
        key: arguments.take(options[key], to, name=f"{path}: {key}")
        for to, keys in OPTIONS.items()
        for key in keys
        if options.get(key) is not None
    }
    if options.get("bn_tf"):  # of older trainers: TensorFlow's
        said = {"bn_eps": 1e-3} | said
    said["size"] = ((said.get("input_size") or said.get("img_size") or ()) * 2)[-2:]
    return {key: value for key, value in said.items() if value}


def _adapted(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """As timm takes those of three channels for one: their average."""
    return values if len(values) in (1, channels) else (sum(values) / len(values),)


def _equal(values: tuple[float, ...], others: tuple[float, ...]) -> bool:
    """Whether they are equal, where one alone is that of all channels."""
    most = max(len(values), len(others))
    both = (*values,) * (most // len(values)), (*others,) * (most // len(others))
    return all(map(partial(math.isclose, rel_tol=1e-6), *both))  # buffers are float32
