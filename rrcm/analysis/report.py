"""The report: certificates of every evaluation -> metrics, tables, curves and one HTML page."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from matplotlib.figure import Figure

from rrcm.analysis import ablations, attacked, entries, pairing, repetitions
from rrcm.analysis import published as publications
from rrcm.analysis.entries import Entry
from rrcm.analysis.estimation import intervals, statistics
from rrcm.analysis.presentation import figures, markup, tables
from rrcm.analysis.presentation.figures import Curve
from rrcm.certification.certify import DIGITS, DOWN, UP, one_minus, printed
from rrcm.core.errors import printable
from rrcm.core.files import write_csv, write_text

TEMPLATE = Path(__file__).with_name("report.html.jinja")
ALTERNATIVE = "Curves of the share certified against the radius; the table has numbers"
_csv = partial(write_csv, digits="%.9g")


def metrics(found: list[Entry], *, radii: list[float]) -> dict[str, dict[str, float]]:
    """The metrics of each entry for `dvc metrics`, by name.

    They are ``acr``, the share that ``abstain``, and certified accuracy at each radius (0.25 is
    ``r025``, because DVC splits names at dots). Shares are in [0, 1]. All have 6 decimals and are
    rounded down, ``abstain`` up.
    """
    numbers = {}
    for entry in found:
        row = {
            "acr": _rounded(statistics.average_certified_radius(entry.judged), DOWN),
            "abstain": _rounded(statistics.abstention(entry.judged), UP),
        }
        for radius in radii:
            name = f"r{100 * radius:03.6g}".replace(".", "_")
            row[name] = _rounded(statistics.certified(entry.judged, radius).mean(), DOWN)
        numbers[entry.name] = row
    return numbers


def _rounded(bound: float, direction: str) -> float:
    return float(printed(bound, direction, places=DIGITS))


def write(
    found: list[Entry],
    out: Path,
    *,
    radii: list[float],
    confidence: float,
    subject: str,
    published: pd.DataFrame | None = None,
    recorded: str = "",
    notes: Sequence[str] = (),
) -> None:
    """Write the page, its tables and its figures to the folder ``out``.

    ``index.html`` is self-contained. ``table.md`` and ``table.tex`` are the table of a paper;
    ``table.csv``, ``comparisons.csv`` and ``curves/`` have the numbers,
    ``ablations.csv`` where entries differ in one thing, ``seeds.csv`` and
    ``seeds_compared.csv`` where they differ in the seed; the curves are there as PNG and SVG. The
    same entries give the same bytes.

    Args:
        found: Entries, all with labels or all without.
        out: A folder; files of other names in it are left alone.
        radii: Radii of the tables, in pixels of [0, 1].
        confidence: Confidence of all intervals.
        subject: The certified images, in words.
        published: Published rows of the same recipes, from `published.read`; ``published.csv`` and
            the page then put them beside ours.
        recorded: The commit and the date of the results, in words.
        notes: Further lines, such as on radii out of reach.

    Raises:
        DataError: Some entries have labels and others do not.
    """
    entries.require_alike(found)
    chosen: dict[str, Any] = {"radii": radii, "confidence": confidence}
    accuracy = tables.accuracy_table(found, **chosen)
    compared = tables.comparisons(found, **chosen)
    write_text(out / "table.md", markup.markdown(accuracy))
    write_text(out / "table.tex", markup.latex(accuracy))
    _csv(tables.accuracy(found, **chosen), out / "table.csv")
    _csv(compared, out / "comparisons.csv")
    theirs = pd.DataFrame() if published is None else published
    beside = publications.compare(found, theirs, **chosen)
    varied = ablations.ablations(found, **chosen)
    if varied:
        _csv(ablations.table(varied), out / "ablations.csv")
    groups = repetitions.repeated(found)
    over_seeds = repetitions.accuracy(groups, radii=radii)
    apart = repetitions.differences(groups, **chosen)
    for name, table in {"published": beside, "seeds": over_seeds, "seeds_compared": apart}.items():
        if len(table):
            _csv(table, out / f"{name}.csv")
    for entry in found:
        curve = statistics.curve(entry.judged)
        bound = entry.lower_bounds(curve["radius"].tolist())
        _csv(curve.assign(lower_bound=bound), out / f"curves/{entry.name}.csv")
    if len(apart):  # about trainings if there are several of each, else about these networks
        said = pairing.of_seeds(apart, level=1 - confidence)
    else:
        said = pairing.of_images(found, compared, level=1 - confidence)
    context = {
        "attacked": attacked.table(found, **chosen),
        "contradictions": attacked.contradictions(found),
        "ablated": ablations.text_table(varied, radii=tables.worth_showing(found, radii)),
        "accuracy": accuracy,
        "comparison": tables.comparison_table(found, compared),
        "concluded": said + pairing.notes(found),
        "curves": _saved(curves_figure(found, **chosen), out / "certified_accuracy"),
        "notes": notes,
        "published": publications.table(beside) if len(beside) else beside,
        "recorded": recorded,
        "seeds": repetitions.accuracy_table(over_seeds) if len(over_seeds) else over_seeds,
        "seeds_apart": repetitions.difference_table(apart),
        "subject": subject,
    }
    write_text(out / "index.html", _page(found, confidence=confidence, context=context))


def _page(found: list[Entry], *, confidence: float, context: dict[str, Any]) -> str:
    """The page, of ``context`` and the tables and facts that need no radii."""
    template = jinja2.Template(
        TEMPLATE.read_text(encoding="utf-8"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        finalize=lambda value: printable(str(value), lines=True),  # unprintable ones made visible
    )
    band = intervals.dkw(min(len(e.judged) for e in found), confidence=confidence)
    return template.render(
        **context,
        ball=tables.ball(found),
        banded=len({entries.label(e, found) for e in found}) <= figures.FEW,
        apart=printed(band, UP, places=1, scale=tables.PERCENT),
        chance=one_minus(confidence, UP, scale=tables.PERCENT),
        confidence=printed(confidence, DOWN, scale=tables.PERCENT),
        cut_short=any(entry.cut_short for entry in found),
        drawing=tables.drawing_table(found),
        facts=_facts(found),
        failures=tables.failure_table(found),
        labelled=found[0].labelled,
        origins=tables.origin_table(found),
        radius=tables.radius_table(found, confidence=confidence),
        title=tables.title(found, confidence=confidence),
        top=found[0].top,
        what=tables.certified(found),
    )


def curves_figure(found: list[Entry], *, radii: list[float], confidence: float) -> Figure:
    """Certified accuracy against the radius, a panel for each sigma; and what an attack leaves."""
    panels: dict[str, dict[str, Curve]] = {}
    for entry in sorted(found, key=lambda e: e.group[1]):
        band, settled = statistics.band(entry.judged, confidence=confidence), None
        if any(entry.undecided(band["radius"].tolist())):
            shares = statistics.certified_accuracy(entry.judged, radii, confidence=confidence)
            settled = shares[[not one for one in entry.undecided(radii)]]
        curve = Curve(band=band, settled=settled)
        panel, name = panels.setdefault(entries.sigma(entry), {}), entries.label(entry, found)
        if "attacked" not in entry.table:
            panel[name] = curve
            continue
        left = statistics.band(statistics.left(entry.judged), confidence=confidence)
        panel[f"{name} certified".lstrip()] = curve
        panel[f"{name} attacked".lstrip()] = Curve(band=left, falls=False)
    return figures.certified_accuracy(panels, what=tables.certified(found))


def _facts(found: list[Entry]) -> list[str]:
    """The settings that all entries share, in words."""
    facts = [
        {f"{len(entry.table):,} images{entries.split([entry])}" for entry in found},
        {"α unknown" if e.alpha is None else f"α = {e.alpha}" for e in found},
    ]
    headers = [entry.votes[0] for entry in found if entry.votes]
    if len(headers) == len(found):
        facts.append({f"n₀ = {h.n0:,}, up to n = {h.n:,} noisy draws an image" for h in headers})
        facts.append({f"stopping rule: {h.stop}" for h in headers})
        facts.append({f"backend: {h.backend}, {h.precision}" for h in headers})
    return [fact for same in facts if len(same) == 1 for fact in same]


def _saved(figure: Figure, out: Path) -> str:
    """Save a figure as PNG and SVG; returns the SVG element, with a text for who cannot see it."""
    for suffix in (".png", ".svg"):
        figures.save(figure, out.with_suffix(suffix))
    svg = out.with_suffix(".svg").read_text(encoding="utf-8")
    drawing = svg[svg.index("<svg") :]
    return drawing.replace("<svg", f'<svg role="img" aria-label="{ALTERNATIVE}"', 1)
