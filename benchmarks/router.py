"""What a choice between two smoothed classifiers certifies, by votes that are there.

``python -m benchmarks.router FIRST.jsonl SECOND.jsonl`` reads votes on the same images, at two σ.
The first classifier answers where the probability of its class is at least tau, else the second. So
much holds in an L2 ball: where p >= tau, as long as p stays there, sigma_1 (ndtri(p) - ndtri(tau));
where p < tau, as long as it stays below, and the second's class stays, the smaller of sigma_1
(ndtri(tau) - ndtri(p)) and sigma_2 ndtri(q). For ndtri(p) of a smoothed classifier changes by at
most 1 / sigma a pixel (Salman et al., 2019, arXiv:1906.04584), for tau >= 1/2 its class does not
change where p stays above tau, and elsewhere p is the largest of all classes' probabilities.

Each of the three bounds fails with probability alpha / 3 at most, and no class needs a share of its
own: it is the true class of largest p whose upper bound must hold. ``as voted`` takes each share of
votes for the probability itself: so much no number of draws certifies, up to chance.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import ndtri
from statsmodels.stats.contingency_tables import mcnemar

from rrcm.analysis.estimation.paired import holm
from rrcm.certification.votes import records
from rrcm.certification.votes.counts import ImageVotes, Rule, at_most
from rrcm.certification.votes.records import Header, Row

TAUS = (0.5, 0.6, 0.7, 0.8, 0.9)
MOST = 1 - 1e-5  # a share of votes for one class that is taken for a probability


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("votes", nargs=2, type=Path)
    files = [records.read(path) for path in parser.parse_args().votes]
    for first, second in (files, files[::-1]):
        print(f"{first[0].run} before {second[0].run}:\n{table(first, second)}\n")


def table(first: tuple[Header, list[Row]], second: tuple[Header, list[Row]]) -> str:
    """Images certified more or fewer than by the better of the two at each radius."""
    (one, rows), (two, others) = first, second
    assert [row.idx for row in rows] == [row.idx for row in others], "other images"
    labels = np.array([row.label for row in rows])
    chosen = sorted({*one.stopping.get("radii", [0.0]), *two.stopping.get("radii", [0.0])})
    columns, p_values = {}, {}
    for how, level in (("certified", one.alpha), ("as voted", None)):
        mine, its = (probabilities(*votes, level and level / 3) for votes in (first, second))
        full = [  # each alone at its full alpha
            alone(probabilities(*votes, level), labels, votes[0].sigma) for votes in (first, second)
        ]
        for tau in TAUS:
            reach = radius(mine[:, 1:], its[:, 1], tau=tau, sigmas=(one.sigma, two.sigma))
            answer = np.where(mine[:, 1] >= tau, mine[:, 0], its[:, 0])
            got = np.where(answer == labels, reach, -1.0)
            for r in chosen:
                a, b = got >= r, max((each >= r for each in full), key=np.sum)
                four = [[(x & y).sum() for y in (b, ~b)] for x in (a, ~a)]
                columns.setdefault(f"{how}, tau = {tau:g}", {})[r] = int(a.sum() - b.sum())
                p_values[how, tau, r] = float(mcnemar(four, exact=True).pvalue)
    corrected = holm(np.array([*p_values.values()]))
    ahead = [
        f"{how}, tau = {tau:g}, r = {r:g}: p = {p:.2g}"
        for (how, tau, r), p in zip(p_values, corrected, strict=True)
        if p < 0.05 and columns[f"{how}, tau = {tau:g}"][r] > 0
    ]
    shown = pd.DataFrame(columns).T.map("{:+d}".format).to_string()
    return f"{shown}\nahead with p < 0.05 (Holm): {'; '.join(ahead) or 'nowhere'}"


def probabilities(header: Header, rows: list[Row], level: float | None) -> np.ndarray:
    """A class, at least and at most its probability, [N, 3]; as voted if ``level`` is None."""
    rule = header.rule()  # one for all, which keeps what images share
    return np.array([_probability(rule, row.votes(len(header.classes)), level) for row in rows])


def _probability(rule: Rule, votes: ImageVotes, level: float | None) -> tuple[float, float, float]:
    if not votes.draws:
        return votes.c_A, 0.0, 1.0
    if level is None:
        share = min(votes.counts[-1].max() / votes.counts[-1].sum(), MOST)
        return int(votes.counts[-1].argmax()), share, share
    most = max(at_most(rule, votes, column, level) for column in votes.counts.T)
    return votes.c_A, 1 - rule.complement(votes.history(votes.c_A), level), most


def alone(found: np.ndarray, labels: np.ndarray, sigma: float) -> np.ndarray:
    """Radii of one classifier, from `probabilities`; -1 where it is wrong, or certifies nothing."""
    answer, p, _ = found.T
    return np.where((answer == labels) & (p > 0.5), sigma * ndtri(p), -1.0)


def radius(p: np.ndarray, q: np.ndarray, *, tau: float, sigmas: tuple[float, float]) -> np.ndarray:
    """Radii [N] of the choice; -1 where it is open.

    ``p`` [N, 2] bound the first's largest probability, ``q`` [N] the second's from below.
    """
    low, high = p.T
    first = sigmas[0] * (ndtri(low) - ndtri(tau))
    second = np.minimum(sigmas[0] * (ndtri(tau) - ndtri(high)), sigmas[1] * ndtri(q))
    return np.where(low >= tau, first, np.where((high < tau) & (q > 0.5), second, -1.0))


if __name__ == "__main__":
    main()
