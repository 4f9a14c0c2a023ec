"""Chooses results by patterns, for ``--only`` of `rrcm report`, `plan` and `log`."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from rrcm.core.errors import ConfigError
from rrcm.core.registry import suggest
from rrcm.core.schema import listed


def matching(names: Iterable[str], patterns: Sequence[str], *, kind: str) -> list[str]:
    """Return the names that match a pattern, or whose part behind ``@`` does; all without patterns.

    ``kind`` says what has such a name.

    Raises:
        ConfigError: A pattern matches none.
    """
    known, wanted = [*names], set[str]()
    for pattern in patterns:
        matches = {n for n in known if any(fnmatchcase(p, pattern) for p in (n, _item(n)))}
        wanted |= matches
        if not matches:
            items = sorted({*map(_item, known)})
            raise ConfigError(
                f"--only {pattern}: no {kind} has such a name, only {listed(items)}."
                f"{suggest(pattern, items)}"
            )
    return [n for n in known if n in wanted or not patterns]


def _item(name: str) -> str:
    return name.partition("@")[2] or name
