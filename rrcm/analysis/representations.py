"""Compares representations of several encoders: linear probes under noise, and distances."""

import io
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure

from rrcm.analysis.estimation import intervals
from rrcm.analysis.estimation.intervals import Estimate
from rrcm.analysis.presentation import figures, tables
from rrcm.core.errors import DataError, one_line
from rrcm.core.files import read_bytes, read_json

PROBE = {"sigma": float, "right": int, "images": int}
SETTINGS = {"normalised": bool, "dimensions": int, "images": int, "t_min": float, "t_max": float}


class Representation(NamedTuple):
    """The results of stage ``represent``: columns `PROBE`, and a ``distance`` with its `SETTINGS`.

    ``bias`` is the part of the distance that is due to the number of images (eq. 53a).
    """

    probe: pd.DataFrame
    frechet: dict[str, Any]


def read(root: Path, names: list[str]) -> dict[str, Representation]:
    """``probe.csv`` and ``metrics.json`` of the folders ``root/<name>``, by name.

    Raises:
        DataError: A file is missing or damaged.
    """
    return {name: _read(root / name, name) for name in names}


def _read(folder: Path, name: str) -> Representation:
    path, hint = folder / "probe.csv", f"; `dvc repro represent@{name}` makes it"
    text = io.BytesIO(read_bytes(path, hint=hint))
    try:
        probe = pd.read_csv(text, usecols=[*PROBE], dtype=PROBE)
        if probe.empty:
            raise ValueError("no rows")
        path = folder / "metrics.json"
        found = read_json(path, hint=hint)["frechet"]
        settings = {key: kind(found[key]) for key, kind in SETTINGS.items()}
        own = {key: float(found[key]) for key in ("distance", "bias")}
        return Representation(probe, own | settings)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: damaged ({one_line(error)}); `dvc repro represent@{name}` rewrites it"
        ) from None


def numbers(found: dict[str, Representation], *, confidence: float) -> pd.DataFrame:
    """One row for each name and sigma: the probe's accuracy with its Wilson interval (eq. 13).

    All rows of a name repeat its ``distance``, the bias ``distance_bias``, and the `SETTINGS` as
    ``distance_<setting>``.
    """
    rows = []
    for name, (probe, frechet) in found.items():
        own = {"distance": frechet["distance"], "distance_bias": frechet["bias"]}
        own |= {f"distance_{key}": frechet[key] for key in SETTINGS}
        for sigma, right, images in probe[[*PROBE]].itertuples(index=False):
            share = intervals.wilson(right, images, confidence=confidence)
            row = {"name": name, "sigma": sigma, "right": right, "images": images}
            row |= {"accuracy": share.value, "low": share.low, "high": share.high}
            rows.append(row | own)
    return pd.DataFrame(rows)


def table(measured: pd.DataFrame) -> pd.DataFrame:
    """`numbers` as text, a row for each name."""
    rows = []
    for name, part in measured.groupby("name", sort=False):
        row = {"name": name}
        row |= {f"σ = {sigma:g}": "–" for sigma in sorted({*measured["sigma"]})}
        for at in part.to_dict("records"):
            share = Estimate(value=at["accuracy"], low=at["low"], high=at["high"])
            row[f"σ = {at['sigma']:g}"] = tables.percent(share)
        line = part.iloc[0]
        row["RFD"] = f"{line['distance']:.4g}"
        row["its bias"] = f"{line['distance_bias']:.2g}"
        row["units"] = "normalised" if line["distance_normalised"] else "its own"
        row["dimensions"] = f"{line['distance_dimensions']:,}"
        row["images"] = f"{line['distance_images']:,}"
        row["t"] = f"{line['distance_t_max']:g}, {line['distance_t_min']:g}"
        rows.append(row)
    return pd.DataFrame(rows)


def note(measured: pd.DataFrame, *, confidence: float) -> str:
    """A note below `table`: its columns, and whether its distances can be compared."""
    said = (
        "σ: test images that a linear probe is right about, %, with "
        f"{tables.percent_of(confidence)} Wilson intervals. RFD: squared Fréchet distance between "
        "representations at both t, of which about `its bias` is due to the number of images; "
        "distances compare only where units, dimensions, images and t are the same"
    )
    each = measured.drop_duplicates("name")
    different = len(each[[f"distance_{key}" for key in SETTINGS]].drop_duplicates()) > 1
    own = len(each) > 1 and not each["distance_normalised"].all()
    return f"{said}, and here they are not." if different or own else f"{said}."


def probes(measured: pd.DataFrame) -> Figure:
    """Accuracy of linear probes against sigma, a line for each name of `numbers`."""
    with style.context(figures.STYLE):
        figure = Figure(figsize=(5.6, 3.8), layout="constrained")
        axis = figure.subplots()
        for number, (name, part) in enumerate(measured.groupby("name", sort=False)):
            # whole markers at sigma = 0
            shown: dict[str, Any] = {"color": figures.colour(number), "clip_on": False}
            percent = 100 * part[["accuracy", "low", "high"]]
            axis.plot(
                part["sigma"],
                percent["accuracy"],
                linestyle=figures.dash(number),
                marker=figures.marker(number),
                markersize=5,
                label=name,
                **shown,
            )
            axis.vlines(part["sigma"], percent["low"], percent["high"], linewidth=1, **shown)
        axis.set_xlabel("σ of the noise, pixels in [0, 1]")
        axis.set_ylabel("test images right, %")
        axis.set_ylim(0, 100)
        axis.set_xlim(left=0)
        axis.grid(alpha=0.25)
        axis.legend(frameon=False)
    return figure
