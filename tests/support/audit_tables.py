"""Tables of certificates, and votes under every stopping rule, for an auditor."""

import dataclasses
from functools import cache

import numpy as np
from builders import header, row

from benchmarks.audit import rounded, simulate

RULES = {
    "none": {},
    "grid": {"radii": [0.0, 0.25, 0.5, 0.75, 1.0], "beta": 0.05},
    "anytime": {"tolerance": 0.01, "beta": 0.001},
    "spending": {"radii": [0.0, 0.25, 0.5, 0.75, 1.0], "beta": 0.01},
}


@cache
def table(n=1_000, *, seed=0, images=200, sigma=0.5, alpha=0.001, digits=6):
    rng = np.random.default_rng(seed)
    found = simulate(rng, n=n, alpha=alpha, sigma=sigma, images=images)
    return rounded(found, digits)


def alarms(result):
    return [(one.level, one.lines, one.text) for one in result.findings if one.level != "note"]


@cache
def sampled(rule, *, n=1_000, images=60, seed=0, sure=0.5, **changes):
    """Votes of images under a stopping rule, a share of them ``sure``: a header and its rows."""
    rng = np.random.default_rng(seed)
    definition = header(
        n=n, n0=100, images=images, stop=rule, stopping=RULES[rule], classes=["a", "b", "c", "d"]
    )
    definition = dataclasses.replace(definition, **changes)
    judge, rows = definition.rule(), []
    for idx in range(images):
        p = 1 - 10.0 ** rng.uniform(-6, -3) if rng.random() < sure else rng.beta(6, 1.2)
        p = np.array([p, *(rng.dirichlet(np.ones(3)) * (1 - p))])
        n0, votes_, looks, before = rng.multinomial(100, p), np.zeros(4, dtype=int), [], 0
        for draws in judge.looks:
            votes_ = votes_ + rng.multinomial(draws - before, p)
            looks.append(votes_.tolist())
            before = draws
            evidence = row(idx, 0, n0.tolist(), *looks, stop="").votes(4)
            if stop := judge.stop(evidence) or ("n" if draws == n else ""):
                break
        rows.append(row(7 * idx, int(rng.integers(4)), n0.tolist(), *looks, stop=stop))
    return definition, rows
