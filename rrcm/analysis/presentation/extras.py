"""Chapters that a page has only if it is written on demand: the report of the graph reads neither.

Images and records of provenance are no inputs of the stage `report`.
"""

from dataclasses import dataclass, field

import pandas as pd


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """An image and a noisy version of it, as ``data:`` URIs of PNG files, with a caption."""

    clean: str
    noisy: str
    name: str
    caption: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Images of one kind, such as the most robust ones, that ``entry`` was certified on."""

    entry: str
    kind: str
    pairs: list[Pair]


@dataclass(frozen=True, kw_only=True, slots=True)
class Extras:
    """Pictures, and the versions and machines of ``provenance/``, a row for each.

    ``recorded`` is the commit and the date of the results, in words.
    """

    pictures: list[Group] = field(default_factory=list)
    versions: pd.DataFrame = field(default_factory=pd.DataFrame)
    recorded: str = ""
