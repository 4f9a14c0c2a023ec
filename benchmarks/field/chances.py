"""What the ledger tests image by image: pairs of methods, and the best of many recipes."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.field import ledger
from benchmarks.field.ledger import CLEAN
from rrcm.analysis.estimation import paired, selection, statistics
from rrcm.certification import tables

PAIR = ["dataset", "sigma", "first", "second", "images", "radius"]
PAIR += ["only_first", "only_second", "difference", "p", "p_holm"]
FULL = {"cifar10": 10_000, "cifar100": 10_000, "mnist": 10_000, "imagenet": 500}  # images
PLAIN = ("resnet110", "resnet50", "lenet")  # networks of the field's tables


def full(rows: pd.DataFrame) -> pd.DataFrame:
    """Clean logs of all images of a table, of one of the usual networks and its own sigma."""
    rows = rows[(rows["verdict"] == CLEAN) & (rows["sigma"] == rows["sigma_train"])]
    rows = rows[rows["network"].isin(PLAIN)]
    return rows[rows["images"] >= rows["dataset"].map(FULL)]


def pairs(rows: pd.DataFrame, base: Path) -> Iterator[pd.DataFrame]:
    """Tests of all pairs of methods of a data set and sigma, corrected together (Holm).

    Of a method without extra data that log stands for it that has the largest ACR. Only logs of the
    same images are paired: those that count them in one order and agree in all labels.
    """
    plain = full(rows[rows["extra"] == "none"])
    for (dataset, sigma), group in plain.groupby(["dataset", "sigma"]):
        best = group.sort_values("acr_low").groupby("method").tail(1).sort_values("method")
        members = best.to_dict("records")
        found = []
        for (one, a), (other, b) in itertools.combinations(
            zip(members, ledger.least(base, members), strict=True), 2
        ):
            if one["order"] != other["order"] or not paired.same_images(a, b):
                continue
            radii = [r for r in ledger.RADII if one[f"r{r:g}_low"] + other[f"r{r:g}_low"]]
            names = {"dataset": dataset, "sigma": sigma, "images": len(a)}
            names |= {"first": one["method"], "second": other["method"]}
            found.append(paired.compare(a, b, radii=radii, confidence=0.95).assign(**names))
        if found:
            every = pd.concat(found)
            every = every[every["only_first"] + every["only_second"] > 0]
            yield every.assign(p_holm=paired.holm(every["p"].to_numpy()))[PAIR]


def recipes(rows: pd.DataFrame) -> pd.DataFrame:
    """The recipes of SmoothAdv that were certified on the same 500 images of CIFAR-10."""
    rows = rows[(rows["source"] == "Salman 2019") & (rows["dataset"] == "cifar10")]
    return rows[~rows["again"] & (rows["images"] == 500) & (rows["verdict"] == CLEAN)]


def curse(rows: pd.DataFrame, base: Path) -> Iterator[dict[str, Any]]:
    """The best of the `recipes` of a sigma at each radius, and what is left of it (eq. 64).

    ``again`` is its certified accuracy on the 9,500 images that did not choose it, where its
    network was certified on all.
    """
    again = rows[rows["again"]].assign(key=rows["file"].map(network))
    for sigma, group in recipes(rows).groupby("sigma"):
        members = group.to_dict("records")
        found = [tables.read(base / one["file"]) for one in members]
        for one in found:
            paired.require_same_images(found[0], one)
        for r in ledger.RADII:
            values = np.stack([statistics.certified(one, r) for one in found]).astype(float)
            if not values.any():
                continue
            picked = selection.best(values)
            member = members[picked.index]
            data = [member["extra"]] * (member["extra"] != "none")
            result = {"sigma": sigma, "recipes": len(found), "radius": r}
            result |= {"best": ", ".join([member["constants"], *data]), "chosen": picked.mean}
            result |= {"there": picked.there, "elsewhere": picked.elsewhere, "again": None}
            for file in again[again["key"] == network(member["file"])]["file"]:
                later = tables.read(base / file)
                others = later[~later["idx"].isin(found[0]["idx"])]
                result["again"] = statistics.certified(others, r).mean()
            yield result


def network(file: str) -> str:
    """What the paths of the logs of one network have in common."""
    recipe, _, noise = file.rpartition("/cifar10/resnet110/")
    return f"{recipe.rpartition('/cifar10/')[2]}/{noise}"
