"""The parts of streams: tokens, references to definitions, and names of scopes."""

from dataclasses import dataclass
from typing import TypeAlias

from pipeline.acceptance.modules import Definition, External, File, Target

OUTSIDE = "from outside: "  # before the name, in a token


@dataclass(frozen=True, slots=True)
class Package:
    """A package whose modules are loaded by name: only ``one`` of them, or any.

    ``by_text``: only its name was found, at the beginning of an f-string.
    """

    dotted: str
    one: str | None = None
    by_text: bool = False


@dataclass(frozen=True, slots=True)
class Everything:
    """A reference to something that may read any of the code, so that all code must be the same.

    ``names_only``: it may read names of definitions and modules, and nothing else.
    """

    names_only: bool = False


Reference: TypeAlias = Definition | File | Package | Everything


@dataclass(frozen=True, slots=True)
class Stream:
    """``tokens`` of statements, None in place of each of ``references``, and their ``lines``."""

    path: str
    tokens: tuple[str | None, ...]
    references: tuple[Reference, ...]
    lines: tuple[int, ...]
    imported: tuple[File | External, ...]  # within functions


class Scope:
    """Names of a function, class or comprehension, numbered as they appear."""

    def __init__(self, kind: str, number: int, names: set[str], parameters: set[str]) -> None:
        """Start a scope of a ``kind``, the ``number``-th of its stream."""
        self.kind, self.number, self.names, self.parameters = kind, number, names, parameters
        self.globals: set[str] = set()
        self.aliases: dict[str, Target] = {}
        self._order: dict[str, int] = {}

    def token(self, name: str) -> str:
        """The token for a name."""
        if self.kind == "class":
            return f"member {name}"
        if name in self.parameters:
            return f"parameter {self.number} {name}"
        return f"local {self.number} {self._order.setdefault(name, len(self._order))}"
