"""A stopping rule is laid out for a certificate: sound with it, and as complete as n draws."""

import itertools
from dataclasses import replace
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
from builders import header, refused
from scipy.stats import norm

from rrcm.certification.certificates import bernstein, cohen, transfer, two_class
from rrcm.certification.stopping import anytime, futile, grid, none
from rrcm.certification.votes.counts import SOFT, Claim, ImageVotes, Rule
from rrcm.certification.votes.sequential import MARGIN
from rrcm.config.defaults import DRAWS
from rrcm.core.errors import CertificateError, ConfigError
from rrcm.core.schema import parse

SIGMA, RADIUS = 0.5, 0.25
CONSTANTS = {
    none: {},
    futile: {"beta": 0.001},
    grid: {"radii": [0.0, RADIUS, 0.5], "beta": 0.001},
    anytime: {"tolerance": 0.02, "beta": 0.001},
}
SERVED = {
    none: [cohen, two_class, transfer, bernstein],
    futile: [cohen, two_class, transfer],
    grid: [cohen, two_class, transfer],
    anytime: [cohen, two_class, transfer],
}
OFFERED = [(rule, certificate) for rule, known in SERVED.items() for certificate in known]
REFUSED = [
    (rule, certificate)
    for rule, certificate in itertools.product(SERVED, SERVED[none])
    if certificate not in SERVED[rule]
]


def name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def make(module, certificate, *, n, alpha, sigma=SIGMA, **changes) -> Rule:
    cfg = parse(CONSTANTS[module] | changes, module.Config, where="stopping")
    claim = Claim(certificate=certificate, sigma=sigma, alpha=alpha)
    return module.Rule(cfg, n=n, claim=claim)


class Image(NamedTuple):
    """Probabilities of classes, the first of which is chosen, and how often functions disagree."""

    p: tuple[float, ...]
    zeta: float = 0.0


def at(certificate: ModuleType, radius: float) -> Image:
    """An image whose true radius is ``radius``, so that every larger claim is false."""
    p = float(norm.cdf(radius / SIGMA))
    if certificate is two_class:  # Phi^-1(p_A) - Phi^-1(p_B) = 2 r / sigma
        p_B = float(norm.cdf(norm.ppf(0.6) - 2 * radius / SIGMA))
        return Image((0.6, p_B, 0.4 - p_B))
    if certificate is transfer:  # the other function answers so wherever the two agree
        return Image((p + 0.01, 0.99 - p), zeta=0.01)
    return Image((p, 1 - p))


def drawn(rule: Rule, image: Image, runs: int, *, pairs: int, seed: int = 0) -> list[ImageVotes]:
    """All draws of ``runs`` images alike."""
    rng = np.random.default_rng(seed)
    steps = [rng.multinomial(b - a, image.p, runs) for a, b in itertools.pairwise([0, *rule.looks])]
    votes = np.cumsum(np.stack(steps, axis=1), axis=1)  # [runs, L, K]
    unlike = rng.binomial(pairs, image.zeta, runs)
    selection = np.eye(len(image.p), dtype=int)[0]
    return [
        ImageVotes(
            idx=run,
            selection=selection,
            draws=rule.looks,
            counts=counts,
            # each draw gives the chosen class all of the probability, or nothing
            soft=(SOFT * int(counts[-1, 0]), SOFT**2 * int(counts[-1, 0])),
            paired=(int(unlike[run]), pairs),
        )
        for run, counts in enumerate(votes)
    ]


def stopped(rule: Rule, whole: ImageVotes) -> ImageVotes:
    """The image when its rule stops."""
    looks = range(1, len(whole.draws) + 1)
    end = next((seen for seen in looks if rule.stop(whole.first(seen))), len(whole.draws))
    return whole.first(end)


def false_claims(module, certificate, radius, *, runs, alpha=0.05, n=160) -> float:
    """The share of images whose certified radius is larger than their true one."""
    rule = make(module, certificate, n=n, alpha=alpha)
    alike: dict[object, list] = {}  # images with the same votes get the same answer
    for whole in drawn(rule, at(certificate, radius), runs, pairs=100):
        alike.setdefault((whole.counts.tobytes(), whole.paired), []).append(whole)
    false = 0
    for (first, *_), images in ((images, len(images)) for images in alike.values()):
        false += images * (rule.claim.radius(stopped(rule, first), rule) > radius)
    return false / runs


def limit(alpha: float, runs: int) -> float:
    """Four standard errors above alpha."""
    return alpha + 4 * (alpha * (1 - alpha) / runs) ** 0.5


@pytest.mark.parametrize(("module", "certificate"), OFFERED, ids=name)
def test_claims_at_a_radius_of_the_table_are_rarely_false(module, certificate):
    assert false_claims(module, certificate, RADIUS, runs=300) <= limit(0.05, 300)


@pytest.mark.slow
@pytest.mark.parametrize(("module", "certificate"), OFFERED, ids=name)
def test_claims_at_a_radius_of_the_table_are_false_with_at_most_alpha(module, certificate):
    assert false_claims(module, certificate, RADIUS, runs=100_000) <= limit(0.05, 100_000)


def test_the_simulation_sees_a_level_that_is_too_large():
    """A control: claims at three times alpha."""
    found = false_claims(none, cohen, RADIUS, runs=3000, alpha=0.15)

    assert found > limit(0.05, 3000)


@pytest.mark.parametrize(("module", "certificate"), REFUSED, ids=name)
def test_what_a_rule_cannot_serve_is_refused(module, certificate):
    """When it is laid out, or, where its bounds hold at several looks, before anything is drawn."""
    if "hits" not in certificate.READS:
        with refused(ConfigError, f"rule {name(module)}", name(certificate), "use the rule none"):
            make(module, certificate, n=250, alpha=0.05)
        return
    rule = make(module, certificate, n=250, alpha=0.05)
    with refused(CertificateError, f"certificate {name(certificate)}", "none or futile"):
        certificate.require(rule, alpha=0.05, pairs=0)


CLOSE = {  # images of which n = 2,000 draws certify RADIUS about as often as not
    cohen: Image((0.725, 0.275)),
    two_class: Image((0.5, 0.115, 0.105, 0.1, 0.09, 0.09)),
    transfer: Image((0.744, 0.256), zeta=0.015),
}


@pytest.mark.parametrize("certificate", CLOSE, ids=name)
@pytest.mark.parametrize("module", [futile, grid], ids=name)
def test_early_stopping_certifies_what_all_draws_would(module, certificate):
    """At a radius of the table, for every certificate that the rule serves."""
    rule = make(module, certificate, n=2_000, alpha=0.01, beta=0.01)
    late = early = lost = 0
    for whole in drawn(rule, CLOSE[certificate], 150, pairs=2_000):
        all_draws = rule.claim.radius(whole, rule) >= RADIUS + MARGIN
        now = rule.claim.radius(stopped(rule, whole), rule) >= RADIUS + MARGIN
        late, early, lost = late + all_draws, early + now, lost + (all_draws and not now)

    assert 15 < late < 140  # which is close
    assert lost <= 0.03 * 150


def certified(rule: Rule, image: Image, radius: float, *, runs: int, pairs: int = 0) -> float:
    """The share of images that are certified at ``radius`` when their rule stops."""
    seen = [stopped(rule, whole) for whole in drawn(rule, image, runs, pairs=pairs)]
    return float(np.mean([rule.claim.radius(one, rule) >= radius for one in seen]))


def test_a_rule_knows_the_level_of_the_certificate():
    """p = .90, n = 100,000, r = .5 at alpha = 1e-5: laid out for .001 a rule stops too early."""
    laid_out = make(grid, cohen, n=100_000, alpha=1e-5, radii=[0.0, 0.5])
    wrongly = make(grid, cohen, n=100_000, alpha=1e-3, radii=[0.0, 0.5])
    image = Image((0.9, 0.1))

    assert certified(laid_out, image, 0.5, runs=100) == 1
    seen = [stopped(wrongly, whole) for whole in drawn(wrongly, image, 100, pairs=0)]
    late = Claim(certificate=cohen, sigma=SIGMA, alpha=1e-5)
    assert np.mean([late.radius(one, wrongly) >= 0.5 for one in seen]) < 0.6


def test_a_rule_knows_the_offset_of_transfer():
    """p = .99, zeta = .002, the table's own radii: all images that n draws certify."""
    rule = make(grid, transfer, n=100_000, alpha=0.001, radii=[0.0, 0.5, 1.0])

    assert certified(rule, Image((0.99, 0.01), zeta=0.002), 1.0, runs=40, pairs=10_000) == 1


def test_a_rule_knows_that_the_runner_up_counts():
    """(.5, .3, .2) has no majority, and `two_class` certifies it all the same."""
    rule = make(futile, two_class, n=1_000, alpha=0.001, beta=0.01)
    image = Image((0.5, 0.3, 0.2))
    seen = drawn(rule, image, 100, pairs=0)
    late = np.mean([rule.claim.radius(whole, rule) > 0 for whole in seen])

    assert late > 0.9
    assert certified(rule, image, 1e-9, runs=100) > late - 0.05
    one_class = make(futile, cohen, n=1_000, alpha=0.001, beta=0.01)
    assert certified(one_class, image, 1e-9, runs=100) == 0


def test_the_noise_is_paid_for_before_the_rule_is_laid_out():
    """A sampler with a total-variation error leaves less of alpha, to the rule as to the table."""
    made = header(slack=1e-6, n0=100, n=400, stop="grid", stopping={"radii": [0.0], "beta": 0.01})

    assert made.rule().claim.alpha == pytest.approx(0.001 - 500e-6, rel=1e-12)
    assert made.alpha_left(0.01) == pytest.approx(0.01 - 500e-6, rel=1e-12)


def test_sums_of_squared_soft_votes_fit_their_integers():
    """n draws of 1 are n 2^32 in steps of 2^-16 squared: below 2^63 up to n = 2^31 - 1."""
    largest = replace(DRAWS, n=2**31 - 1, soft=1.0)

    assert largest.n * SOFT**2 < 2**63 <= (largest.n + 1) * SOFT**2
    with refused(ConfigError, "n: squares of soft votes", "below 2^31", "2147483648"):
        replace(largest, n=2**31)
    replace(DRAWS, n=2**31)
