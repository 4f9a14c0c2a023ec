"""Tables of a report: as numbers (one row each, shares in [0, 1]), and as text."""

import numpy as np
import pandas as pd

from rrcm.analysis import entries, pairing
from rrcm.analysis.entries import Entry
from rrcm.analysis.estimation import intervals, paired, statistics
from rrcm.analysis.presentation import markup
from rrcm.certification.certify import DOWN, UP, one_minus, printed

PERCENT = 100
DIGEST = 12  # hexadecimal digits of a SHA-256 that are shown


def accuracy_table(found: list[Entry], *, radii: list[float], confidence: float) -> pd.DataFrame:
    """Certified accuracy in percent with its interval as text, one row per entry.

    Without labels it is the certified share, and columns are named so. Numbers that are only lower
    bounds, because drawing stopped early, have a ≥ (an abstention rate has a ≤). The radii are
    those of `worth_showing`. The accuracy without noise is in a column ``clean``, where it is known
    of an entry. Where entries differ in how many images they have, a column has it.
    """
    entries.require_alike(found)
    labelled = all(entry.labelled for entry in found)
    shown = worth_showing(found, radii)
    sizes = len({len(entry.judged) for entry in found}) > 1
    bare = [
        statistics.clean(entry.judged, confidence=confidence) if labelled else None
        for entry in found
    ]
    rows = []
    for entry, clean in zip(found, bare, strict=True):
        row = {"σ": entries.sigma(entry), "method": entries.label(entry, found)}
        row |= {"images": f"{len(entry.judged):,}"} if sizes else {}
        if any(bare):
            row["clean"] = percent(clean.value, clean.low, clean.high) if clean else "?"
        shares = statistics.certified_accuracy(entry.judged, shown, confidence=confidence)
        bounds = entry.lower_bounds(shown)
        for (radius, *share), bound in zip(shares.to_numpy(), bounds, strict=True):
            column = f"r = {radius:g}" if labelled else f"answered, r = {radius:g}"
            row[column] = at_least(bound) + percent(*share)
        row["ACR" if labelled else "mean radius"] = acr(entry)
        abstained = printed(statistics.abstention(entry.judged), UP, places=1, scale=PERCENT)
        row["abstain %"] = "≤ " * entry.lower_bounds([0.0])[0] + abstained
        rows.append(row)
    return pd.DataFrame(rows)


def worth_showing(found: list[Entry], radii: list[float]) -> list[float]:
    """The radii up to the first that no entry certifies: nor do they certify those beyond."""
    furthest = max(statistics.credited(entry.judged).max(initial=0.0) for entry in found)
    first_without = min((radius for radius in radii if radius > furthest), default=furthest)
    return [radius for radius in radii if radius <= first_without]


def text(found: list[Entry], *, radii: list[float], confidence: float) -> str:
    """`accuracy_table` and its title as text for a terminal."""
    table = accuracy_table(found, radii=radii, confidence=confidence)
    return f"{title(found, confidence=confidence)}\n\n{markup.plain(table, again=2)}"


def at_least(bound: bool) -> str:
    """The mark of a number that is only a lower bound."""
    return "≥ " if bound else ""


def certified(found: list[Entry]) -> str:
    """What is certified of entries, by `entries.require_alike`, such as ``certified accuracy``."""
    of_top = f"top-{found[0].top} " * bool(found[0].top)
    what = "accuracy" if all(e.labelled for e in found) else "share"
    return f"certified {of_top}{what}" + f" in {ball(found)}" * (found[0].norm != "l2")


def ball(found: list[Entry]) -> str:
    """The sign of the norm of radii."""
    return {"l1": "ℓ₁", "l2": "ℓ₂", "linf": "ℓ∞"}[found[0].norm]


def title(found: list[Entry], *, confidence: float) -> str:
    """The title of `accuracy_table`."""
    what = certified(found) + " (no labels)" * (not all(entry.labelled for entry in found))
    of = entries.split(found)
    if shares := {e.votes[0].shard for e in found if e.votes} - {pairing.WHOLE}:
        of += f", share {', '.join(sorted(shares))} of the images alone"
    sizes = {(len(entry.judged), len(entry.table)) for entry in found}
    if partly := {f"{some:,} of {all_:,}" for some, all_ in sizes if some < all_}:
        of += f" of the labelled images ({', '.join(sorted(partly))})"
    return f"{what}{of}, % [{percent_of(confidence)} Wilson interval]"


def accuracy(found: list[Entry], *, radii: list[float], confidence: float) -> pd.DataFrame:
    """Certified accuracy as numbers: one row for each entry and radius.

    ``lower_bound`` is True if drawing stopped before this radius was decided for every image.
    """
    parts = [
        statistics.certified_accuracy(entry.judged, radii, confidence=confidence).assign(
            entry=entry.name,
            model=entry.model,
            method=entry.method,
            sigma=entry.sigma,
            images=len(entry.judged),
            lower_bound=entry.lower_bounds(radii),
        )
        for entry in found
    ]
    columns = "entry model method sigma images radius value low high lower_bound"
    return pd.concat(parts, ignore_index=True)[columns.split()]


def comparisons(found: list[Entry], *, radii: list[float], confidence: float) -> pd.DataFrame:
    """Paired comparisons, radius by radius, of entries that share model, sigma and images."""
    parts = [comparison(*pair, radii=radii, confidence=confidence) for pair in pairing.pairs(found)]
    columns = "sigma radius first second both only_first only_second neither difference low high p"
    columns += " p_holm undecided"
    return pd.concat(parts)[columns.split()] if parts else pd.DataFrame(columns=columns.split())


def comparison(
    first: Entry, second: Entry, *, radii: list[float], confidence: float
) -> pd.DataFrame:
    """`paired.compare` of two entries, with their names.

    Where ``undecided``, drawing for one of them stopped before this radius was decided; of that
    many images, ``unknown``, more draws might change the answer.
    """
    table = paired.compare(first.judged, second.judged, radii=radii, confidence=confidence)
    undecided = np.logical_or(first.undecided(radii), second.undecided(radii))
    unknown = [
        int((pairing.unknown(first, radius) | pairing.unknown(second, radius)).sum())
        for radius in radii
    ]
    names = {"sigma": first.sigma, "first": first.name, "second": second.name}
    return table.assign(**names, undecided=undecided, unknown=unknown)


def undecided_table(numbers: pd.DataFrame) -> pd.DataFrame:
    """The undecided rows of `comparison` as text: counts by the draws that were made, no tests."""
    names = {"radius": "r", "both": "both", "only_first": "only A", "only_second": "only B"}
    names |= {"neither": "neither", "unknown": "undecided"}
    shown = numbers.loc[numbers["undecided"], [*names]]
    return shown.assign(radius=shown["radius"].map("{:g}".format)).rename(columns=names)


def comparison_table(found: list[Entry], numbers: pd.DataFrame) -> pd.DataFrame:
    """`comparisons` as text, without undecided rows and those in which no image differs."""
    names = {entry.name: entry for entry in found}
    return pd.DataFrame(
        {
            "σ": entries.sigma(names[line["first"]]),
            "r": f"{line['radius']:g}",
            "A": entries.label(names[line["first"]], found),
            "B": entries.label(names[line["second"]], found),
            "both": line["both"],
            "only A": line["only_first"],
            "only B": line["only_second"],
            "neither": line["neither"],
            "A − B, points": points(line["difference"], line["low"], line["high"]),
            "p": f"{line['p']:.2g}",
            "p, Holm": f"{line['p_holm']:.2g}",
        }
        for line in numbers.to_dict("records")
        if not line["undecided"] and line["only_first"] + line["only_second"]
    )


def radius_table(found: list[Entry], *, confidence: float) -> pd.DataFrame:
    """ACR with its interval, and paired differences of ACR at the same sigma.

    Where drawing stopped early, an ACR has a ≥, and its differences are unknown and left out.
    """
    rows = []
    for entry in found:
        mean = intervals.mean(statistics.credited(entry.judged), confidence=confidence)
        ends = interval(mean.low, mean.high, places=3)
        rows.append((entries.sigma(entry), entries.label(entry, found), f"{acr(entry)} {ends}"))
    for first, second in pairing.pairs(found):
        if difference := acr_difference(first, second, confidence=confidence):
            names = " − ".join(entries.label(entry, found) for entry in (first, second))
            rows.append((entries.sigma(first), names, difference))
    return pd.DataFrame(rows, columns=["σ", "classifier, or difference", "ACR"])


def failure_table(found: list[Entry]) -> pd.DataFrame:
    """The number of `judged` images' certificates that may be false, by their number and alpha.

    The confidence of the last columns is 1 - alpha.
    """
    return pd.DataFrame(
        {
            "images": f"{images:,}",
            "α": f"{alpha}",
            "false, expected ≤": printed(alpha, UP, digits=2, scale=images),
            "P(any false) ≤": f"{printed(some, UP, digits=2, scale=PERCENT)} %",
            f"false, with {one_minus(alpha, DOWN, scale=PERCENT)} % confidence ≤": f"{most:,}",
            "that is, points ≤": printed(most / images, UP, digits=2, scale=PERCENT),
        }
        for images, alpha in dict.fromkeys((len(e.judged), e.alpha) for e in found if e.alpha)
        for some in [intervals.any_false(images, alpha=alpha)]
        for most in [intervals.most_false(images, alpha=alpha, rho=alpha)]
    ).fillna("")


def drawing_table(found: list[Entry]) -> pd.DataFrame:
    """Draws, reasons to stop, rule, noise and backend of the entries that record them."""
    rows = []
    for entry in (one for one in found if one.records_stops):
        row = {"σ": entries.sigma(entry), "method": entries.label(entry, found)}
        shares = entry.table["stop"].value_counts(normalize=True).sort_index()
        row["why drawing stopped"] = ", ".join(
            f"{why} {100 * s:.1f} %" for why, s in shares.items()
        )
        row["draws an image"] = f"{entry.table['n'].mean():,.0f}"
        if entry.votes:
            header, _ = entry.votes
            row["of at most"] = f"{header.n:,}"
            row["rule"] = header.stop
            row["noise"] = f"{header.noise}, seed {header.seed}"
            row["function"] = f"{header.backend} {header.precision}, {header.provider}"
        rows.append(row)
    return pd.DataFrame(rows).fillna("?")


def origin_table(found: list[Entry]) -> pd.DataFrame:
    """The network, images and draws of the entries that record them, by digests."""
    return pd.DataFrame(
        {
            "σ": entries.sigma(entry),
            "method": entries.label(entry, found),
            "network": header.weights[:DIGEST],
            "images": header.pixels[:DIGEST],
            "noise": f"{header.stream}; seed {header.seed}",
            "votes": header.format,
        }
        for entry in found
        if entry.votes
        for header in entry.votes[:1]
    )


def percent(value: float, low: float, high: float, *, direction: str = DOWN) -> str:
    """A share, rounded down or in another ``direction``, and its interval as text, in percent."""
    ends = interval(low, high, places=1, scale=PERCENT)
    return f"{printed(value, direction, places=1, scale=PERCENT)} {ends}"


def points(difference: float, low: float, high: float, *, places: int = 1) -> str:
    """A difference of shares and its interval as text, in points."""
    ends = interval(low, high, places=places, scale=PERCENT, sign="+")
    return f"{PERCENT * difference:+.{places}f} {ends}"


def interval(low: float, high: float, *, places: int, scale: int = 1, sign: str = "") -> str:
    """An interval as text, rounded outwards; question marks where its ends are unknown (NaN)."""
    if np.isnan(low):
        return "[?, ?]"
    start = printed(low, DOWN, places=places, scale=scale, sign=sign)
    return f"[{start}, {printed(high, UP, places=places, scale=scale, sign=sign)}]"


def acr(entry: Entry) -> str:
    """ACR as text, rounded down; with a ≥ where drawing stopped early."""
    mean = statistics.average_certified_radius(entry.judged)
    return at_least(entry.cut_short) + printed(mean, DOWN, places=3)


def acr_difference(first: Entry, second: Entry, *, confidence: float) -> str:
    """The difference of the ACR of two entries as text; empty if one of them is a lower bound.

    Where it is not recorded whether drawing stopped early, the text makes that a condition.
    """
    if first.cut_short or second.cut_short:
        return ""
    apart = paired.acr_difference(first.judged, second.judged, confidence=confidence)
    found = f"{apart.value:+.3f} {interval(apart.low, apart.high, places=3, sign='+')}"
    known = first.records_stops and second.records_stops
    return found if known else f"{found} if no drawing stopped early"


def percent_of(level: float) -> str:
    """The confidence of an interval as text, such as ``95 %``."""
    return f"{printed(level, DOWN, scale=PERCENT)} %"
