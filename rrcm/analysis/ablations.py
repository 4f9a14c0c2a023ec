"""Ablations: certified accuracy and ACR of entries that differ in one setting."""

from typing import Any

import pandas as pd

from rrcm.analysis import entries
from rrcm.analysis.entries import Entry
from rrcm.analysis.estimation import intervals, statistics
from rrcm.analysis.presentation import tables
from rrcm.certification.certify import DOWN, printed

COLUMNS = "key panel entry value base radius certified low high lower_bound"
COLUMNS += " acr acr_low acr_high acr_lower_bound"
BASE = " (base)"  # behind the value that the others are variants of


def ablations(
    found: list[Entry], *, radii: list[float], confidence: float
) -> dict[str, pd.DataFrame]:
    """A table for each varied setting, with a row for each entry and radius; the base comes first.

    Entries with the same method, training sigma and sigma are compared with the first of them, the
    *base*. They may differ in one of ``settings``, or in several that share one value, such as two
    temperatures; other entries are left out. Entries that differ only in seeds are repetitions, and
    all are kept.

    Columns: ``key``, the varied setting; ``panel``, a title of the compared entries; ``entry``;
    ``value`` of the setting; ``base``, whether it is the base's; ``radius``; the share
    ``certified`` at it, with its Wilson interval ``low`` to ``high``; ``acr`` with its bootstrap
    interval, the same at each radius; and whether either is only a lower bound, because drawing
    stopped early.
    """
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for entry in found:
        if entry.settings:
            groups.setdefault((*entry.group[1:], entry.sigma_train, entry.method), []).append(entry)
    parts: dict[str, list[pd.DataFrame]] = {}
    for members in groups.values():
        for keys, varied in _varied(members).items():
            for entry in varied:
                acr = intervals.mean(statistics.credited(entry.judged), confidence=confidence)
                shares = tables.accuracy([entry], radii=radii, confidence=confidence)
                value = entry.settings[keys[0]]
                rows = shares.rename(columns={"value": "certified"}).assign(
                    key=_named(keys),
                    panel=_panel(entry, found),
                    value=[value] * len(radii),  # which may be a list itself
                    base=value == members[0].settings[keys[0]],
                    acr=acr.value,
                    acr_low=acr.low,
                    acr_high=acr.high,
                    acr_lower_bound=entry.cut_short,
                )
                parts.setdefault(_named(keys), []).append(rows[COLUMNS.split()])
    return {key: pd.concat(one, ignore_index=True) for key, one in parts.items()}


def table(found: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Concatenate the tables of `ablations`, with values as `text`."""
    whole = pd.concat(found.values(), ignore_index=True)
    return whole.assign(value=[text(value) for value in whole["value"]])


def text_table(found: dict[str, pd.DataFrame], *, radii: list[float]) -> pd.DataFrame:
    """The tables of `ablations` as text, a row for each entry: percent at ``radii``, and ACR."""
    rows = []
    for key, numbers in found.items():
        for (panel, _), part in numbers.groupby(["panel", "entry"], sort=False):
            one = part.iloc[0]
            row = {"varied": key, "of": panel, "value": text(one["value"])}
            row["value"] += BASE if one["base"] else ""
            for each in part[part["radius"].isin(radii)].to_dict("records"):
                share = tables.percent(each["certified"], each["low"], each["high"])
                row[f"r = {each['radius']:g}"] = tables.at_least(each["lower_bound"]) + share
            ends = tables.interval(one["acr_low"], one["acr_high"], places=3)
            acr = f"{printed(one['acr'], DOWN, places=3)} {ends}"
            rows.append(row | {"ACR": tables.at_least(one["acr_lower_bound"]) + acr})
    return pd.DataFrame(rows)


def text(value: Any) -> str:
    """A value as text: like YAML, but lists without brackets."""
    if isinstance(value, list):
        return ", ".join(map(text, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _varied(members: list[Entry]) -> dict[tuple[str, ...], list[Entry]]:
    """Varied keys -> the base and its repetitions, then the entries that differ in those keys."""
    base, *others = members
    like = [base]
    unlike: dict[tuple[str, ...], list[Entry]] = {}
    for entry in others:
        both = {**base.settings, **entry.settings}
        keys = tuple(k for k in both if base.settings.get(k) != entry.settings.get(k))
        if not keys:
            like.append(entry)  # another seed
        elif _as_one(base, keys) and _as_one(entry, keys):
            unlike.setdefault(keys, []).append(entry)
    return {keys: [*like, *others] for keys, others in unlike.items()}


def _as_one(entry: Entry, keys: tuple[str, ...]) -> bool:
    """Whether all ``keys`` have one and the same value in an entry."""
    values = [entry.settings.get(key) for key in keys]
    return values[0] is not None and all(value == values[0] for value in values)


def _named(keys: tuple[str, ...]) -> str:
    """``pretrain.loss.tau_contrast = tau_consistency``: the section is written once."""
    first, *others = keys
    section = first.rpartition(".")[0]
    return " = ".join([first, *(key.removeprefix(f"{section}.") for key in others)])


def _panel(entry: Entry, found: list[Entry]) -> str:
    """The title of a panel: sigma, and the method and training sigma where panels differ."""
    parts = [f"σ = {entries.sigma(entry)}"]
    if len({e.method for e in found}) > 1:
        parts.append(entry.method)
    if entry.sigma_train not in (None, entry.sigma):
        parts.append(f"trained at {entry.sigma_train:g}")
    return ", ".join(parts)
