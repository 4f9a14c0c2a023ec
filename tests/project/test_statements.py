"""What the documents say of the presets is what the presets have."""

import re
from functools import cache

import pytest
from workspace import ROOT

from pipeline.project import presets
from rrcm.config import params

PRESETS = sorted(path.stem for path in ROOT.glob("presets/*.yaml"))
PAPER = [name for name in PRESETS if not name.startswith(("digits", "fashion"))]
RULES = ("futile", "grid", "spending", "anytime")


@cache
def preset(name):
    return params.load(ROOT / f"presets/{name}.yaml")


@cache
def document(name):
    """Its text, every run of blanks and line ends as one blank."""
    return " ".join((ROOT / "docs" / name).read_text().split())


def pretrainings(names, objective):
    return [cfg for n in names for cfg in preset(n).pretrain.values() if cfg.objective == objective]


def test_the_curriculum_of_each_preset():
    said = re.search(
        r"The presets of the paper's experiments \(.*?\) use `(\w+)`, "
        r"ours of smaller images `(\w+)`",
        document("theory.md"),
    )

    for names, rule in zip((PAPER, {*PRESETS} - {*PAPER}), said.groups(), strict=True):
        assert {cfg.grid.rule for cfg in pretrainings(names, "rrcm")} == {rule}


def test_lambda_of_the_digits_and_of_the_paper():
    text = document("theory.md")
    paper = re.search(r"\$\\lambda = (\d+)\$ at \$\\sigma = 0\.25\$ or (\d+) above", text)
    others = re.search(r"`digits-diffusion` have (\d+) and (\d+), and `digits` has (\d+)", text)
    ours = {"digits": (others[3], others[3])}
    ours |= dict.fromkeys(("digits-all", "digits-diffusion"), others.groups()[:2])

    for names, said in ((PAPER, paper.groups()), *(([name], said) for name, said in ours.items())):
        runs = [r for n in names for r in preset(n).runs.values() if r.method == "rrcm"]
        found = {(r.loss["lbd"], r.sigma > 0.25) for r in runs}
        assert found == {(float(said[0]), False), (float(said[1]), True)}


def test_how_pairs_are_drawn_and_that_terms_weigh_the_same():
    found = pretrainings(PRESETS, "rrcm")

    drawn = {(c.grid.mean, c.grid.std) for c in found if c.grid.sampling == "lognormal"}
    assert {cfg.loss["consistency"] for cfg in found} == {1.0}
    text = document("theory.md")
    said = re.search(
        r"so do our presets but `(\S+)`, "
        r"whose \$\\ln t\$ has mean (\S+) and standard deviation (\S+)\.",
        text,
    )
    ours = pretrainings([said[1]], "rrcm")
    assert drawn == {(float(said[2]), float(said[3]))}
    assert {c.grid.sampling for c in ours} == {"lognormal"}
    assert sum(c.grid.sampling == "lognormal" for c in found) == len(ours)
    assert "our presets set $w = 1$" in text


def test_contrast_alone_can_be_compared_at_an_equal_batch(tmp_path, monkeypatch):
    """With the run that recipes.md names, of the preset that it names."""
    monkeypatch.chdir(ROOT)
    said = re.search(
        r"\*\*equal batches of (\d+)\*\*; `(\S+)` has batches of (\d+)\. "
        r"Compare `(\S+)` with `(\S+)`, which `rrcm preset (\S+) --base (\S+)` adds",
        document("recipes.md"),
    )
    equal, ours, larger, contrast, other, ablation, base = said.groups()
    made = tmp_path / "params.yaml"
    made.write_text(presets.composed(ablation, base))

    def batch(whole, run):
        return whole.pretrain[whole.runs[run].start.removeprefix("pretrained/")].batch_size

    assert batch(preset(base), contrast) == batch(params.load(made), other) == int(equal)
    assert batch(preset(base), ours) == int(larger)


def test_the_classifier_behind_diffsmooth():
    """Trained with the noise of the copies, whatever sigma is certified."""
    found = [
        (whole.runs[entry.run].sigma, entry.local.sigma)
        for whole in map(preset, PRESETS)
        for entry in whole.purified.values()
        if entry.method.startswith("diffsmooth")
    ]

    assert {*found} == {(0.25, 0.25)}
    assert "trained with noise of `local.sigma`, 0.25, at every sigma" in document("purifiers.md")


@pytest.mark.parametrize("rule", RULES)
def test_beta_of_each_rule(rule):
    """The table of certifying.md has a column for it."""
    line = re.search(rf"^\| `{rule}` \|.*$", (ROOT / "docs/certifying.md").read_text(), re.M)[0]
    said = {float(value) for value in re.findall(r"\d[\d.e-]*", line.split("|")[-2])}

    assert said == {preset(name).stopping[rule]["beta"] for name in PRESETS}
