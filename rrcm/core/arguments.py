"""Takes the arguments of public functions by their annotations, or refuses them in one line.

What holds a number exactly is that number: NumPy's scalars, tensors of one element, 1e3 for a whole
one. A single number stands for a list of one. Text and truth values are no numbers.
"""

import functools
import inspect
import math
import numbers
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from rrcm.core.errors import ConfigError
from rrcm.core.schema import shown

P = ParamSpec("P")
R = TypeVar("R")
WORDS = {float: "a number", int: "a whole number", str: "text", bool: "True or False"}
WORDS |= {os.PathLike: "a path", Path: "a path"}


def checked(*but: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give a function its arguments as the types of its annotations; it reads ``but`` by itself.

    Raises, when it is called:
        ConfigError: An argument is of another type; names it.
    """

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        names = [*inspect.signature(function).parameters]

        @functools.wraps(function)
        def entry(*args: P.args, **kwargs: P.kwargs) -> R:
            hints = _hints(function)

            def taken(name: str, value: Any) -> Any:
                return take(value, hints[name], name=name) if name in hints else value

            place: Any = [*map(taken, names, args), *args[len(names) :]]
            named: Any = {name: taken(name, value) for name, value in kwargs.items()}
            return function(*place, **named)

        return entry

    @functools.cache  # when it is first called: annotations may name what comes after it
    def _hints(function: Callable[..., Any]) -> dict[str, Any]:
        found = typing.get_type_hints(function)
        return {name: to for name, to in found.items() if name not in {*but, "return"}}

    return decorated


def take(value: Any, to: Any, *, name: str) -> Any:
    """``value`` as the type ``to``: a class, a collection or a union of these.

    Raises:
        ConfigError: It is none; names the argument.
    """
    arms = typing.get_args(to) if isinstance(to, types.UnionType) else (to,)
    for arm in arms:
        try:
            return _as(value, arm)
        except (TypeError, ValueError, OverflowError):  # another type, length or size
            pass
    wanted = " or ".join(_words(arm) for arm in arms if arm is not types.NoneType)
    raise ConfigError(f"{name}: expected {wanted}, got {shown(value)}")


def _as(value: Any, to: Any) -> Any:
    """``value`` as ``to``, which is no union; an error of Python if it is none."""
    origin, of = typing.get_origin(to) or to, typing.get_args(to)
    if to is Any:
        return value
    if to is float:
        return float(_number(value))
    if to is int:
        number = _number(value)
        if number % 1 == 0:
            return int(number)
    if to is bool and (isinstance(value, bool) or _number(value) in (0, 1)):
        return bool(value)
    if of and issubclass(origin, Mapping):
        return {_as(k, of[0]): _as(v, of[1]) for k, v in _as(value, Mapping).items()}
    if of and issubclass(origin, Iterable):
        items = _items(value)
        if origin is tuple and of[-1] is not ...:
            return tuple(_as(item, one) for item, one in zip(items, of, strict=True))
        return (tuple if origin is tuple else list)(_as(item, of[0]) for item in items)
    if not isinstance(value, origin):
        raise TypeError
    return value


def _number(value: Any) -> Any:
    """A number, of Python's types or of others that tell theirs."""
    if callable(getattr(value, "item", None)) and math.prod(getattr(value, "shape", (2,))) == 1:
        value = value.item()  # of NumPy and of PyTorch
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError
    return value


def _items(value: Any) -> list[Any]:
    """The items of a collection, in their order; of a number, itself."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, numbers.Real):
        return [value]
    if isinstance(value, str | bytes | Mapping):
        raise TypeError
    return [*value]


def _words(to: Any) -> str:
    """A type as it is called in errors."""
    origin, of = typing.get_origin(to) or to, typing.get_args(to)
    if not of:
        return WORDS.get(origin, getattr(origin, "__name__", str(origin)))
    if issubclass(origin, Mapping):
        return f"a dict of {_words(of[1])}"
    many = f"{len(of)} " if origin is tuple and of[-1] is not ... else ""
    return f"a list of {many}{_words(of[0]).removeprefix('a ')}{'s' * (of[0] in (float, int))}"
