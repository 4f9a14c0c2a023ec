"""Mappings of YAML and JSON to frozen dataclasses: every key known, present and typed."""

import dataclasses
import math
import typing
from pathlib import Path
from typing import Any, Literal

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from rrcm.errors import ConfigError, one_line
from rrcm.registry import suggest

T = typing.TypeVar("T")


def read_yaml(path: Path) -> Any:
    """The contents of a YAML 1.2 file."""
    try:
        return YAML(typ="safe", pure=True).load(path)  # YAML 1.2, as DVC: 1e-4 is a float
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: not found; run this in a checkout, or `rrcm preset digits`"
        ) from None
    except (YAMLError, ValueError) as error:  # the latter of a tag or a date that is none
        raise ConfigError(f"{path}: {one_line(error)}") from None


def find(node: Any, dotted: str, *, where: Path) -> Any:
    """The part of ``node``, the contents of the file ``where``, at a dotted path.

    Raises:
        ConfigError: It is not there; names the first key that is missing.
    """
    for key in dotted.split("."):
        if not isinstance(node, dict) or key not in node:
            known = [str(k) for k in node] if isinstance(node, dict) else []
            raise ConfigError(f"{where}: {dotted}: no {key!r} here.{suggest(key, known)}")
        node = node[key]
    return node


def finite(node: Any) -> Any:
    """``node`` with infinities as the text that YAML has for them, ``.inf``: JSON has none."""
    if isinstance(node, dict):
        return {key: finite(value) for key, value in node.items()}
    if isinstance(node, list):
        return [finite(value) for value in node]
    if isinstance(node, float) and math.isinf(node):
        return ".inf" if node > 0 else "-.inf"
    return node


def parse(node: dict[str, Any], into: type[T], *, where: str) -> T:
    """Build a dataclass from a mapping; unknown, missing or mistyped keys are errors."""
    if not isinstance(node, dict):
        raise ConfigError(f"{where}: expected a mapping, got {node!r}")
    types_ = typing.get_type_hints(into)
    if unknown := sorted(str(key) for key in node.keys() - types_.keys()):
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}.{suggest(unknown[0], [*types_])}")
    if missing := [key for key in types_ if key not in node]:
        raise ConfigError(f"{where}: missing {', '.join(missing)}")
    values = {key: cast(node[key], type_, where=f"{where}.{key}") for key, type_ in types_.items()}
    try:
        return into(**values)
    except ConfigError as error:  # a class checks its own values, and cannot know where they stand
        raise ConfigError(f"{where}.{error}") from None


def cast(value: Any, to: Any, *, where: str) -> Any:
    """``value`` as the type ``to``, or a ConfigError that names the place; ints become floats."""
    origin, arguments = typing.get_origin(to) or to, typing.get_args(to)
    if to is Any:
        return value
    if dataclasses.is_dataclass(to):
        return parse(value, to, where=where)
    if origin is Literal:
        if value not in arguments:
            hint = suggest(str(value), [str(a) for a in arguments])
            raise ConfigError(f"{where}: must be {' or '.join(arguments)}, got {value!r}.{hint}")
        return value
    if to is float and type(value) is int:
        return float(value)
    if type(value) is not origin:
        raise ConfigError(f"{where}: expected {origin.__name__}, got {value!r}")
    if origin is list:
        return [cast(v, arguments[0], where=f"{where}[{i}]") for i, v in enumerate(value)]
    if origin is dict:
        return {k: cast(v, arguments[1], where=f"{where}.{k}") for k, v in value.items()}
    return value
