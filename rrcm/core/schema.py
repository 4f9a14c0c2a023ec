"""Parses YAML and JSON mappings into frozen dataclasses: every key known, present and typed.

Only a key that came later has a default, which is what was done before: it is left out where it
would change the bytes of what was made before.
"""

import dataclasses
import math
import re
import reprlib
import typing
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import ScalarNode

from rrcm.core.errors import ConfigError, one_line
from rrcm.core.files import read_bytes
from rrcm.core.registry import Of, require, suggest

T = typing.TypeVar("T")
INFINITE = "may be infinite"
Unbounded = Annotated[float, INFINITE]  # any other float of a dataclass is finite
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}")
Name = Annotated[str, NAME]  # a user's name for an entry; part of paths, stages and dotted keys
LARGEST = 2**64  # bound of whole numbers, as later code computes in 64 bits
LINE = 380  # most characters of an error
LONGEST = 2**20  # bytes of a YAML file


class _Short(reprlib.Repr):
    """Shortens values in errors, where a long string, list or number would hide its place."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60
        self.maxlist = self.maxdict = 6
        self.maxlevel = 3

    def repr_int(self, x: int, level: int) -> str:
        """Numbers of thousands of digits by their length, as Python refuses to print them."""
        return repr(x) if abs(x) < LARGEST**2 else f"a whole number of {x.bit_length()} bits"


class _Constructor(SafeConstructor):
    """Refuses a key that comes twice beside a merge key, ``<<``: ruamel.yaml takes the last."""

    def flatten_mapping(self, node: Any) -> Any:
        """Get the keys of other mappings, after a look at its own."""
        own = [key for key, _ in node.value if isinstance(key, ScalarNode)]
        counts = Counter((key.tag, key.value) for key in own)
        twice = [key for key in own if counts[key.tag, key.value] > 1]
        if twice and node.merge is None:  # else those of others are among its own
            problem = f'found duplicate key "{twice[-1].value}"'
            raise ConstructorError(None, None, problem, twice[-1].start_mark)
        return super().flatten_mapping(node)


def shown(value: object) -> str:
    """``repr(value)``, shortened: one line of at most some hundred characters."""
    return _SHORT.repr(value)


_SHORT = _Short()


def listed(names: Iterable[object], *, most: int = 120) -> str:
    """Names joined by commas, as many as fit into ``most`` characters."""
    words = [shown(name)[1:-1] if isinstance(name, str) else shown(name) for name in names]
    fit, length = 0, 0
    while fit < len(words) and (length := length + len(words[fit]) + 2) <= most:
        fit += 1
    return ", ".join(words[: max(fit, 1)]) + (", …" if fit < len(words) else "")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Add the file's name to errors of the block, and shorten them to one line.

    Raises:
        ConfigError: The block raised one; ``path`` is put in front.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {one_line(error, most=LINE)}") from None


def read_yaml(path: Path) -> Any:
    """The contents of a YAML 1.2 file; to parse it takes a while, so its last version is kept.

    Raises:
        ConfigError: It is missing, not YAML, nested too deeply, or has more than `LONGEST` bytes.
    """
    hint = "; run this in a checkout, or `rrcm preset digits`"
    raw = read_bytes(path, ConfigError, most=LONGEST, hint=hint)
    return deepcopy(_parsed(path, raw))  # whoever asked may change what it got


@lru_cache(maxsize=1)
def _parsed(path: Path, raw: bytes) -> Any:
    """What the bytes of a file say; see `read_yaml`."""
    try:
        yaml = YAML(typ="safe", pure=True)  # YAML 1.2, as DVC: 1e-4 is a float
        yaml.Constructor = _Constructor
        return yaml.load(raw)
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply") from None
    # an invalid tag or date, or bytes that are not UTF-8
    except (YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: {one_line(error)}") from None


def find(node: Any, dotted: str) -> Any:
    """The part of a file's contents ``node`` at a dotted path.

    Raises:
        ConfigError: There is none; names the first missing key.
    """
    for key in dotted.split("."):
        if not isinstance(node, dict) or key not in node:
            known = [str(k) for k in node] if isinstance(node, dict) else []
            raise ConfigError(f"{dotted}: no {shown(key)} here.{suggest(key, known)}")
        node = node[key]
    return node


def finite(node: Any) -> Any:
    """``node`` with infinities replaced by YAML's text ``.inf``, as JSON has no infinity."""
    if isinstance(node, dict):
        return {key: finite(value) for key, value in node.items()}
    if isinstance(node, list):
        return [finite(value) for value in node]
    if isinstance(node, float) and math.isinf(node):
        return ".inf" if node > 0 else "-.inf"
    return node


def within(where: str, key: object) -> str:
    """The dotted place of a key in the mapping at ``where``; "" is the whole file."""
    name = key if isinstance(key, str) and len(key) <= 100 else shown(key)
    return f"{where}.{name}" if where else name


def parse(node: dict[str, Any], into: type[T], *, where: str) -> T:
    """Build a dataclass from a mapping; unknown, missing or mistyped keys are errors.

    ``where`` is the dotted place of ``node`` for errors, "" for a whole file.
    """
    at = f"{where}: " if where else ""
    if not isinstance(node, dict):
        raise ConfigError(f"{at}expected a mapping, got {shown(node)}")
    types_ = typing.get_type_hints(into, include_extras=True)
    if unknown := sorted((key for key in node if key not in types_), key=shown):
        hint = suggest(unknown[0], [*types_]) if isinstance(unknown[0], str) else ""
        raise ConfigError(f"{at}unknown key {shown(unknown[0])}.{hint}")
    fields = {field.name: field for field in dataclasses.fields(into)}  # type: ignore[arg-type]
    later = {key for key, of in fields.items() if of.default is not dataclasses.MISSING}
    if missing := [key for key in types_ if key not in node and key not in later]:
        raise ConfigError(f"{at}missing {', '.join(missing)}")
    values = {
        key: cast(node[key], type_, where=within(where, key))
        for key, type_ in types_.items()
        if key in node
    }
    try:
        return into(**values)
    except ConfigError as error:  # a class checks its own values, but does not know their place
        raise ConfigError(f"{where}.{error}" if where else str(error)) from None


def cast(value: Any, to: Any, *, where: str) -> Any:
    """``value`` as the type ``to``, or a ConfigError that names the place; ints become floats.

    An int must be below 2^64 in magnitude, a float finite unless it is `Unbounded`, a string marked
    with `registry.Of` the name of a component, and a `Name` a plain word.
    """
    marks: Sequence[object] = ()
    if typing.get_origin(to) is Annotated:
        to, *marks = typing.get_args(to)
    origin, arguments = typing.get_origin(to) or to, typing.get_args(to)
    if to is Any:
        return value
    if isinstance(to, type) and dataclasses.is_dataclass(to):
        return parse(value, to, where=where)
    if origin is Literal:
        if value not in arguments:
            hint = suggest(value, [*arguments]) if isinstance(value, str) else ""
            raise ConfigError(
                f"{where}: must be {' or '.join(arguments)}, got {shown(value)}.{hint}"
            )
        return value
    if origin is float:
        return _number(value, finite=INFINITE not in marks, where=where)
    if type(value) is not origin:
        raise ConfigError(f"{where}: expected {origin.__name__}, got {shown(value)}")
    if origin is int and abs(value) >= LARGEST:
        raise ConfigError(f"{where}: whole numbers are below 2^64, got {shown(value)}")
    if origin is list:
        return [cast(v, arguments[0], where=f"{where}[{i}]") for i, v in enumerate(value)]
    if origin is dict:
        key, each = arguments
        return {
            cast(k, key, where=within(where, k)): cast(v, each, where=within(where, k))
            for k, v in value.items()
        }
    for mark in marks:
        if mark is NAME and not NAME.fullmatch(value):
            raise ConfigError(
                f"{where}: a name is a letter and up to 99 letters, digits, _ or -, "
                f"got {shown(value)}"
            )
        if isinstance(mark, Of):
            try:
                require(mark.kind, value)
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from None
    return value


def _number(value: Any, *, finite: bool, where: str) -> float:
    if type(value) not in (int, float):
        raise ConfigError(f"{where}: expected float, got {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isnan(number) or ((finite or value != number) and math.isinf(number)):
        kind = "a finite number" if finite else "a number"
        raise ConfigError(f"{where}: expected {kind}, got {shown(value)}")
    return number
