"""What result pages say of their tables is looked up in them: counts, differences, who is ahead.

A sentence that counts or compares is either one of these, or listed as what no table has.
"""

import re
from itertools import pairwise
from statistics import mean

import pandas as pd
import pytest
from scipy.stats import norm
from workspace import ROOT

CLAIM = re.compile(
    r"points|ahead|is behind|\bp [=<≥]|\bp (?:at most|below)|more images|\bapart\b|\bleads?\b"
    r"|same gain|\bequal at\b|is larger|all \d+ |\d+ of \d+ images|of \d+ comparisons|below 0.05"
)
NO_TABLE = (
    "differ by at most 2.0 points (p ≥ 0.42)",  # certificates of a GPU, in no release
    "up to 0.8 points less at 0.001",  # docs/published.md, which is rendered, has it
    "On the same 500 images, the first minus the second",  # these say what a table has
    "Differences of rRCM in points, with 95 % intervals",
    "Bold means p below 0.05",
    "Lead of rRCM in points over the mean",
    "images are those of `rrcm certify --model`",  # each names the command that shows it
    "images are equal to the last digit",
    "p is below 0.05 at these radii",
    "prints all leads of this section",
    "clean and noisy representations move apart",
    "0.2 was better than 0.05 on the choice",  # of the choice split, in no release
    "Each of three seeds of consistency training is ahead",  # the command prints each seed's
    "By `rrcm compare` of two evaluations",  # in no release, as digits-all has none
    "σ = 0.5 and r = 0.75 `reweighting` is ahead",
    "the gate of 3 points for 78 epochs went",  # a plan, fixed before there were results
)
Rows = dict[tuple[str, str], list[str]]


class Page:
    """A page of docs/, its tables, and what is left of its sentences."""

    def __init__(self, name: str) -> None:
        text = (ROOT / f"docs/results-{name}.md").read_text()
        self.tables = [*map(table, re.findall(r"(?:^\|.*\n)+", text.replace("−", "-"), re.M))]
        plain = re.sub(r"^\|.*|^#.*", "\n.\n", text, flags=re.M)
        self.left = " ".join(plain.split())

    def says(self, template: str, *values: float, slack: float = 0.0) -> None:
        """There is this sentence, with these values at the places of {}, rounded as they are there.

        ``slack`` is for values of rounded ones.
        """
        pattern = re.escape(template).replace(r"\{\}", r"([-+−]?\d+(?:\.\d+)?)")
        found = re.search(pattern, self.left)
        assert found, template
        self.left = self.left.replace(found[0], "")
        for shown, value in zip(found.groups(), values, strict=True):
            unit = 10.0 ** -len(shown.partition(".")[2])
            assert abs(float(shown.replace("−", "-")) - value) <= slack + 0.5001 * unit, template


def table(block: str) -> Rows:
    """Rows by their first two cells; an empty first cell is the one above."""
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in block.splitlines()[2:]]
    for above, row in pairwise(rows):
        row[0] = row[0] or above[0]
    return {(row[0], row[1]): row[2:] for row in rows}


def values(cells: list[str]) -> list[float]:
    """The first number of each cell that has one."""
    return [float(m[0]) for c in cells if (m := re.search(r"[-+]?\d+\.?\d*", c))]


def ps(cells: list[str]) -> list[float]:
    """The number in parentheses of each cell that has one."""
    found = re.findall(r"\((?:< )?([\d.]+)\)", " ".join(cells))
    return [float(p) for p in found]


def cifar10(page: Page) -> None:
    """All its p are after Holm; those of a row that are < 0.001 count as 0.001."""
    _, tests, systems, vits, scratch, probes, search, lengths, _ = page.tables
    apart, p = ({key: of(row) for key, row in tests.items()} for of in (values, ps))
    many = len(tests)
    page.says("Counting all {} rows, only p ≤ {} is significant:",
              many, max(x for row in p.values() for x in row if x * many < 0.05))  # fmt: skip
    near, far = ("0.25", "Gaussian, two cores, Cohen et al."), ("0.5", "Gaussian, Cohen et al.")
    page.says("**Gaussian training for 86 minutes is not told from that of Cohen et al.**")
    assert min(p[near] + p[far]) > 0.05
    sun = "0.25", "Gaussian, two cores, Sun et al."
    page.says("is ahead of it by {} to {} points at σ = 0.25, not beyond chance once all tests "
              "below are counted; at σ = 0.5 they are not told apart.",
              -max(apart[sun]), -min(apart[sun]))  # fmt: skip
    assert many * min(p[sun]) > 0.05 and min(p["0.5", "Gaussian, Sun et al."]) > 0.05
    small, large = (
        apart["0.25", "consistency, Gaussian of two cores"],
        apart["0.5", "consistency, Gaussian"],
    )
    page.says("{} points at r = 0.75 and {} at 0 (σ = 0.25), {} at r = 1 and {} at 0 (σ = 0.5).",
              small[3], small[0], large[4], large[0])  # fmt: skip
    ours = [
        ("0.25", "consistency, Sun et al.'s consistency"),
        ("0.5", "consistency, Sun et al.'s consistency"),
    ]
    below = [x for key in ours for x in apart[key]]
    page.says("It is below that of Sun et al. at each of the eleven radii, by {} to {} points, "
              "none of which 500 images tell from chance.", -max(below), -min(below))  # fmt: skip
    assert len(below) == 11 and max(below) < 0 and min(x for key in ours for x in p[key]) > 0.05
    page.says("**rRCM is not told from consistency training**, neither at the same total cost, a "
              "third of which pre-trains, nor at equal fine-tuning.")  # fmt: skip
    same = [ps(scratch["all, equal fine-tuning", "difference (p)"])]
    same += [p["0.25", "rRCM, consistency of two cores"], p["0.5", "rRCM, consistency"]]
    assert min(map(min, same)) > 0.05
    page.says("**SmoothAdv at σ = 0.5 is not told from consistency training**, either: {} points "
              "at r = 1 and {} at 0, compared with Gaussian training.",
              *(apart["0.5", "SmoothAdv, Gaussian"][r] for r in (4, 0)))  # fmt: skip
    assert min(p["0.5", "SmoothAdv, consistency"]) > 0.05
    mixed = [apart["0.5", f"SmoothMix, {other}"] for other in ("consistency", "Gaussian")]
    page.says("**SmoothMix at σ = 0.5 is behind consistency training**, by {} points at r = 0 and "
              "{} at 1; compared with Gaussian training it has {} at r = 1.25 and {} at 0.",
              -mixed[0][0], -mixed[0][4], mixed[1][5], mixed[1][0])  # fmt: skip
    clear = [p["0.5", "SmoothMix, consistency"][r] for r in (0, 4)]
    clear += [p["0.5", "SmoothMix, Gaussian"][r] for r in (0, 5)]
    assert many * max(clear) < 0.05
    behind = {name: ps(row) for (of, name), row in systems.items() if of == "seed 0 minus"}
    assert len(behind) == 10 and max(behind["MACER ◊"]) < 0.05
    assert all(min(behind[name]) > 0.05 for name in ("SmoothAdv ◊", "rRCM"))
    shown = [values(row)[2] for (of, _), row in systems.items() if of == "in %"]
    assert shown == sorted(shown, reverse=True)
    apart_behind = {
        name: ps(row) for (of, name), row in systems.items() if of == "Gaussian of † minus"
    }
    page.says("**Behind so small a denoiser a classifier of clean images loses radius;")
    assert min(apart_behind.pop("DiffSmooth †")) > 0.05
    votes = [values(systems["in %", f"DensePure, {n} †"]) for n in ("five votes", "one vote")]
    page.says("**Five votes of DensePure certify more than one**, {} and {} points at r = 0.25 and "
              "0.5", *(votes[0][r] - votes[1][r] for r in (1, 2)))  # fmt: skip
    assert len(apart_behind) == 4 and max(row[2] for row in apart_behind.values()) < 0.05
    page.says("**None of the three pre-trainings is told from consistency training from scratch")
    against = [ps(row) for (of, _), row in vits.items() if of == "consistency minus"]
    assert len(against) == 3 and min(map(min, against)) > 0.05
    gaps = [scratch[k, "difference (p)"] for k in ("10 %, equal total cost", "10 %, another seed")]
    page.says("With 10 % of the labels it is behind at the same total cost, by {} and {} points at "
              "r = 0 with two seeds.",
              *(-values(row)[0] for row in gaps))  # fmt: skip
    trained, fresh = (values(probes[name, "0.25"])[1] for name in ("pre-trained", "random"))
    page.says("The pre-training adds {} points at the noise of the head", trained - fresh)
    by = {key: values(row) for key, row in search.items()}
    page.says("Stronger views help at the σ of the head, and cost at σ = 1; a slower target helps")
    slow, middle, fast = (row for (name, _), row in by.items() if name == "as it is")
    assert (
        by["view", "on the last target"][1] > fast[1]
        and by["view", "on the last target"][3] < fast[3]
    )
    assert slow[1] > middle[1] > fast[1]
    gain = values(lengths["78 minus 5", "[95 %]"])[1]
    page.says("**A longer pre-training helps these encoders by {} points** (p = {})",
              gain, values(lengths["78 minus 5", "p"])[1])  # fmt: skip
    ends = [values(lengths[length, "6"])[1] for length in ("78", "5")]
    assert abs(ends[0] - ends[1] - gain) < 0.101
    assert max(map(abs, values(lengths["5 minus 0", "[95 %]"]))) < 0.05


def digits(page: Page) -> None:
    """Its paired tests have a file, which was the page's table."""
    file = pd.read_csv(ROOT / "benchmarks/digits-compared.csv", dtype=str)
    cells = file.melt(["preset", "sigma", "against"], var_name="r").query("value != '–'")
    cells[["apart", "p"]] = cells["value"].str.extract(r"(\S+) \((\S+)\)").astype(float)
    of = cells.set_index(["preset", "sigma", "against", "r"])[["apart", "p"]].sort_index()
    every, denoised = of.loc["digits-all"], of.loc["digits-diffusion"]

    def at(found: pd.DataFrame, sigma: str, against: str, *radii: float) -> list[float]:
        rows = found.loc[[(sigma, against, f"r={r:g}") for r in radii]]
        return [*rows["apart"], rows["p"].max()]

    (recent,) = (of for of in page.tables if ("0.25", "catrs") in of)
    page.says("Here it falls from `consistency` over `reweighting` to `catrs` at both σ,")
    for sigma in ("0.25", "0.5"):
        acr = [float(recent[sigma, m][-1]) for m in ("consistency", "reweighting", "catrs")]
        assert acr[0] > acr[1] > acr[2]
    clear = every[every["p"] < 0.05]
    won, lost = (clear[clear["apart"] * sign > 0] for sign in (1, -1))
    page.says("Of {} comparisons, `rrcm` is ahead in {} with p below 0.05: {} at σ = 0.25, of "
              "`jepa`, `stability`, `macer` and `smoothmix`, and {} at σ = 0.5, of all but "
              "`gaussian` and `consistency`.",
              len(every), len(won), len(won.loc["0.25"]), len(won.loc["0.5"]))  # fmt: skip
    names = {s: {*won.loc[s].index.get_level_values(0)} for s in ("0.25", "0.5")}
    assert names["0.25"] == {"jepa", "stability", "macer", "smoothmix"}
    assert {*every.loc["0.5"].index.get_level_values(0)} - names["0.5"] == {
        "gaussian",
        "consistency",
    }
    page.says("It is behind in {}: of `consistency` at σ = 0.25 and r = 0.5 ({} points, p = {}) "
              "and at σ = 0.5 and r = 0.25 ({}, {}), and at σ = 0.5 and r = 0 of `gaussian` "
              "({}, {}) and `stability` ({}, {}).", len(lost),
              *at(every, "0.25", "consistency", 0.5), *at(every, "0.5", "consistency", 0.25),
              *at(every, "0.5", "gaussian", 0), *at(every, "0.5", "stability", 0))  # fmt: skip
    page.says("beyond chance, `consistency` is ahead of it at both σ, and `gaussian` and "
              "`stability` at σ = 0.5 and r = 0.")  # fmt: skip
    assert [a for *_, a, _ in lost.index] == ["consistency"] * 2 + ["gaussian", "stability"]
    local = [at(denoised, "0.25", f"diffsmooth{m}", 0.5) for m in (5, 10, 15)]
    page.says("`rrcm` is ahead of `denoised` at r = 0.5 ({} points, p = {}) and of `densepure1` at "
              "r = 0.25 ({}, {}), and behind `diffsmooth5`, 10 and 15 at r = 0.5 ({}, {} and {}, "
              "p at most {}).", *at(denoised, "0.25", "denoised", 0.5),
              *at(denoised, "0.25", "densepure1", 0.25), *(x for x, _ in local),
              max(p for _, p in local))  # fmt: skip
    page.says("it is ahead of `denoised` at r = 0.25 and 0.5 ({} and {}, p at most {}), of "
              "`densepure1` at r = 0, 0.25 and 0.5 ({}, {} and {}, p at most {}), and of "
              "`densepure5` at r = 0.5 ({}, {}). No other difference has p below 0.05.",
              *at(denoised, "0.5", "denoised", 0.25, 0.5),
              *at(denoised, "0.5", "densepure1", 0, 0.25, 0.5),
              *at(denoised, "0.5", "densepure5", 0.5))  # fmt: skip
    assert (denoised["p"] < 0.05).sum() == 11
    page.says("10,000 draws certify no radius beyond {}:", 0.25 * norm.isf(1 - 0.001**1e-4))


def fashion_mnist(page: Page) -> None:
    levels, tuned, total, few, _, longer = page.tables

    def cells(found: Rows, name: str) -> list[str]:
        return [cell for (_, other), row in found.items() if other == name for cell in row if cell]

    page.says("rRCM certifies more images than consistency training at most radii, by one to two "
              "points, and more than Gaussian training at large radii, by up to ten; at r = 0 "
              "Gaussian training is level or ahead.")  # fmt: skip
    ours = values(cells(tuned, "consistency"))
    assert [round(min(ours)), round(max(ours))] == [1, 2]
    assert round(max(values(cells(tuned, "gaussian")))) == 10
    assert not any(row[0].startswith("**+") for (_, n), row in tuned.items() if n == "gaussian")
    theirs = cells(total, "consistency")
    page.says("consistency training is ahead of rRCM at every radius, by {} to {} points (one of "
              "these differences is significant), and rRCM is ahead of Gaussian training only at "
              "large radii.", -max(values(theirs)), -min(values(theirs)))  # fmt: skip
    assert max(values(theirs)) < 0 and sum(cell.startswith("**") for cell in theirs) == 1
    gained = [values(row) for (_, name), row in total.items() if name == "gaussian"]
    assert all(row[0] < row[1] < 0 < row[-1] for row in gained)
    page.says("spent on more steps of consistency training, gives the same gain.")
    shares = [
        {n: mean(values(row)) for (s, n), row in of.items() if s == "0.5"} for of in (few, levels)
    ]
    lead = [[of["rrcm"] - of[name] for of in shares] for name in ("consistency", "gaussian")]
    page.says("rRCM leads consistency training by {} points with 1 % of the labels, 1.2 with 10 % "
              "and {} with all, and Gaussian training by {}, 4.3 and {}", *lead[0], *lead[1],
              slack=0.1)  # fmt: skip
    page.says("With 1 % of the labels the lead at equal fine-tuning is larger.")
    assert all(one > every for one, every in lead)
    by = {key: values(row) for key, row in longer.items()}
    page.says("it grows with the length of the pre-training, by less at each doubling.")
    for name in ("consistency", "gaussian"):
        steps = [b - a for a, b in pairwise(by["all", name])]
        assert steps == sorted(steps, reverse=True) and steps[-1] > 0
    every, some = by["all", "consistency"], by["10 %", "consistency"]
    page.says("the last doubling adds {} points", every[3] - every[2])
    page.says("the lead grows by {} points in all, not evenly.", some[3] - some[0])
    page.says("already gives {} of the {} points over", every[0], every[2])
    cell = tuned["1", "gaussian"][6]
    page.says("{} points at σ = 1, r = 1.5 have p = 0.055", *values([cell]))
    assert not cell.startswith("**")


def mnist(page: Page) -> None:
    rows = {(name, r): row for of in page.tables for (name, r), row in of.items()}
    errors, signs = ([float(row[i].split()[0]) for row in rows.values()] for i in (3, 2))
    page.says("all {} differences are within 1.81 standard errors. {} are negative;",
              len(rows), sum(apart < 0 for apart in signs))  # fmt: skip
    assert max(map(abs, errors)) == 1.8
    of = [values(rows[f"`lenet-{m}-s050-e050`", "1.75"]) for m in ("consistency", "gaussian")]
    page.says("`consistency` leads as published: at r = 1.75 by {} points over `gaussian` "
              "(published: {}).",
              of[0][0] - of[1][0], of[0][1] - of[1][1])  # fmt: skip


@pytest.mark.parametrize("look", [cifar10, digits, fashion_mnist, mnist])
def test_what_a_page_says_of_its_tables_is_in_them_and_nothing_else_is_said(look):
    page = Page(look.__name__.replace("_", "-"))

    look(page)

    left = [s for s in re.split(r"(?<=[.;:])\s+(?=[A-Zσ*`(])", page.left) if CLAIM.search(s)]
    assert [s for s in left if not any(known in s for known in NO_TABLE)] == []


def test_the_table_of_the_readme_has_rows_of_its_page():
    [text] = re.findall(
        r"^\| training.*\| network.*\n(?:\|.*\n)+", (ROOT / "README.md").read_text(), re.M
    )
    shown = [values(line.split("|")[3:]) for line in text.splitlines()[2:]]
    ours, _, systems, *_ = Page("cifar10").tables
    whole = [values(row) for of in (ours, systems) for row in of.values()]

    assert len(shown) == 11 and shown == sorted(shown, key=lambda row: -row[2])
    assert [row for row in shown if row not in [one[: len(row)] for one in whole]] == []
