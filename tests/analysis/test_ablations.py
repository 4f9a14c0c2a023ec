"""An ablation varies what it says and nothing else, and its table shows the certificates."""

import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import PARAMS, certificates, changed, plain, refused
from dvc.utils.serialize import parse_yaml
from helpers import shipped
from workspace import ROOT, tracked

from pipeline import checked
from pipeline.project import presets, variants
from pipeline.project.variants import Ablation
from rrcm.analysis import ablations, entries, report
from rrcm.analysis.estimation import intervals, statistics
from rrcm.certification.certify import floor
from rrcm.config import params
from rrcm.core.errors import ConfigError

RUN = "tiny-rrcm-s050"
FILES = tracked("presets/ablations/*.yaml")
CASES = [
    *((file.stem, "digits") for file in FILES if "digits" in variants.read(file)),
    ("tau", "cifar10"),
]
VARIED = {"digits": set(), "fashion-mnist": {"pretrain.steps", "recipe.epochs"}}  # by presets
ALL_RADII = [0.0, 0.25, 0.5]


@pytest.fixture(autouse=True)
def checkout(monkeypatch):
    """Presets are found in the folder that a command is run in."""
    monkeypatch.chdir(ROOT)


@cache
def made(name, base):
    """What is varied, and what comes of it as a file."""
    text = presets.composed(f"ablation-{name}", base)
    return variants.read(Path(f"presets/ablations/{name}.yaml"))[base], text


def leaves(node, path=""):
    """Dotted key -> value of what a variant names."""
    if not isinstance(node, dict):
        return {path.removeprefix("."): node}
    return {k: v for key, part in node.items() for k, v in leaves(part, f"{path}.{key}").items()}


def apart(one, other):
    """Where two runs are made differently: key -> the other's value."""
    assert one.keys() == other.keys()
    return {key: other[key] for key in one if one[key] != other[key]}


@pytest.mark.parametrize(("name", "base"), CASES)
def test_a_variant_differs_in_what_it_names_and_in_nothing_else(name, base):
    """And the components that its values are for take them."""
    ablation, text = made(name, base)
    source, whole = shipped(base), presets.parsed(text)
    run, setting = ablation.run, leaves(ablation.setting)
    names = [run, *(f"{run}-{variant}" for variant in ablation.variants)]

    assert apart(entries.settings(source, run), entries.settings(whole, run)) == setting
    for copy, changes in zip(names[1:], ablation.variants.values(), strict=True):
        differs = apart(entries.settings(whole, run), entries.settings(whole, copy))
        assert differs == leaves(changes)
    assert [*whole.runs] == names and {e.run for e in whole.evals.values()} == {*names}
    assert len(whole.evals) == len(names) and len({run.seed for run in whole.runs.values()}) == 1
    assert {e.sigma for e in whole.evals.values()} == {source.runs[run].sigma}
    for section in ("data", "export", "stopping", "sample", "certify", "report"):
        assert getattr(whole, section) == getattr(source, section)
    runs = whole.runs.values()
    assert {*whole.models} == {run.model for run in runs}
    assert {*whole.recipes} == {run.recipe for run in runs}
    assert {f"pretrained/{name}" for name in whole.pretrain} == {run.start for run in runs}
    assert {(p.model, f"pretrained/{n}") for n, p in whole.pretrain.items()} == {
        (run.model, run.start) for run in runs
    }
    checked.check(whole)
    assert params.parse(parse_yaml(text, "params.yaml"), params.Params, where="") == whole  # by DVC


def test_the_ablations_are_those_of_the_appendix():
    """Lei et al. (2025), arXiv:2501.13094: with images, at sigma = 1 and a batch of 256."""
    tried = {
        "tau": ("pretrain.loss.tau_contrast", [0.05, 0.1, 0.5]),
        "ema": ("pretrain.loss.ema", [0.9, 0.99, 0.999]),
        "trajectory": ("pretrain.grid.t_max", [1.0]),
        "clean": ("pretrain.loss.align", [[0.5], [1.0], [2.0], [0.5, 1.0, 2.0]]),
        "size": ("model.size", ["32x4x4", "64x2x4", "96x6x6"]),
        "batch": ("pretrain.batch_size", [64, 128, 512]),
    }

    assert [file.stem for file in FILES] == sorted([*tried, "pretraining", "scratch"])
    for name, (key, values) in tried.items():
        found = variants.read(Path(f"presets/ablations/{name}.yaml"))
        assert [leaves(v)[key] for v in found["digits"].variants.values()] == values
        for base in ("cifar10", "imagenet"):
            assert found[base].run == "b-rrcm-s100"
            assert (found[base].setting == {}) == (name == "batch")
            if name != "batch":
                assert leaves(found[base].setting) == {"pretrain.batch_size": 256}


def test_rrcm_is_compared_with_training_from_scratch_at_equal_cost():
    """Of 48,900 training images; a last, smaller batch of an epoch is left out."""
    whole = presets.parsed(presets.composed("ablation-scratch", "cifar10-cpu"))
    checked.check(whole)

    def cost(run):
        """Gradient evaluations; two of each image, in the pre-training as well."""
        recipe = whole.recipes[run.recipe]
        pretrain = whole.pretrain.get(run.start.removeprefix("pretrained/"))
        steps = recipe.epochs * (int(48900 * recipe.labels) // recipe.batch_size)
        before = pretrain.steps * pretrain.batch_size if pretrain else 0
        return 2 * (before + steps * recipe.batch_size)

    def pair(ours, theirs):
        """Of one seed; only the first has a pre-training."""
        found = [whole.runs[f"resnet9-rrcm-s025{end}"] for end in (ours, theirs)]
        assert [run.start for run in found] == ["pretrained/resnet9", "none"]
        assert found[0].seed == found[1].seed
        return found

    ours, theirs = pair("", "-consistency")
    assert ours.recipe == theirs.recipe
    for share, seed in [("labels10", ""), ("labels10", "-seed1"), ("labels01", "")]:
        ours, theirs = pair(f"-{share}{seed}", f"-{share}-consistency{seed}")
        assert cost(theirs) == pytest.approx(cost(ours), rel=0.005)


def test_each_variant_of_a_pretraining_is_probed_on_the_images_that_a_preset_holds_out():
    whole = presets.parsed(presets.composed("ablation-pretraining", "cifar10-cpu"))
    checked.check(whole)
    probes = [*whole.representations.values()]

    assert len(probes) == 9 and {probe.split for probe in probes} == {"choice"}
    assert [probe.encoder for probe in probes] == [f"pretrained/{name}" for name in whole.pretrain]
    assert {made.steps * made.batch_size for made in whole.pretrain.values()} == {936 * 256}


def composed(changes, run=RUN, base=None):
    """The variants of a run of the miniature."""
    ablation = Ablation(run=run, setting={}, variants=changes)
    return variants.compose(base or plain(PARAMS), ablation, where="here")


def test_what_a_variant_shares_with_the_run_is_trained_once():
    tuned = composed({"slow": {"recipe": {"epochs": 9}}, "firm": {"run": {"loss": {"lbd": 3}}}})

    assert [*tuned["pretrain"]] == ["tiny"] and [*tuned["recipes"]] == ["finetune", "finetune-slow"]
    assert [run["start"] for run in tuned["runs"].values()] == ["pretrained/tiny"] * 3
    assert tuned["runs"][f"{RUN}-firm"]["recipe"] == "finetune"
    assert tuned["runs"][f"{RUN}-firm"]["loss"]["lbd"] == 3.0
    assert [*tuned["evals"]] == [f"{RUN}-e050", f"{RUN}-slow-e050", f"{RUN}-firm-e050"]


def test_a_run_that_is_changed_to_start_elsewhere_needs_no_pretraining():
    scratch = {"run": {"start": "none"}}
    tuned = composed({"scratch": scratch | {"pretrain": {"steps": 9}}})
    setting = Ablation(run=RUN, setting=scratch, variants={"seed": {"run": {"seed": 1}}})
    never = variants.compose(plain(PARAMS), setting, where="here")

    assert [run["start"] for run in tuned["runs"].values()] == ["pretrained/tiny", "none"]
    assert [*tuned["pretrain"]] == ["tiny"]
    assert [run["start"] for run in never["runs"].values()] == ["none", "none"]
    assert never["pretrain"] == {}


def test_a_variant_that_changes_nothing_is_refused():
    for changes, *words in (
        ({"a": {"pretrain": {"steps": 30}}}, "variants.a: ", "same as the run itself"),
        ({"a": {"run": {"seed": 1}}, "b": {"run": {"seed": 1}}}, "variants.b: ", "same as a"),
        ({"a": {"pretrian": {"steps": 9}}}, "'pretrian' is none of model, recipe, run, pretrain"),
    ):
        with refused(ConfigError, "here", *words):
            composed(changes)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{t_max: 1.0}", "{t_max: 0.001}", "pretrain.tiny-t1.grid.t_min"),
        ("{grid: {t_max: 1.0}}", "{step: 9}", "pretrain.tiny-t1: unknown key 'step'"),
        ("t1:", "t.1:", "pretrain.tiny-t.1"),
    ],
)
def test_a_change_that_cannot_be_meant_is_refused_and_writes_nothing(folder, old, new, said):
    file = folder / "presets/ablations/trajectory.yaml"
    file.write_text(file.read_text().replace(old, new, 1))

    with refused(ConfigError, "presets/ablations/trajectory.yaml: digits: not valid", said):
        use("ablation-trajectory")
    assert not (folder / "params.yaml").exists()


def test_a_run_that_is_not_there_or_not_evaluated_is_refused():
    with refused(ConfigError, "here.run: 'tiny-rrcm-s05' is none of", RUN):
        composed({}, run="tiny-rrcm-s05")
    with refused(ConfigError, f"here.run: nothing evaluates {RUN} at the sigma of its own"):
        composed({}, base=changed(plain(PARAMS), f"evals.{RUN}-e050.sigma", 0.25))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A checkout of presets alone."""
    shutil.copytree(ROOT / "presets", tmp_path / "presets")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def use(name, base=None, *, force=False):
    said = presets.use(name, base=base, force=force)
    return said, Path("params.yaml").read_text()


def test_ablations_and_presets_replace_each_other_until_somebody_edits_one(folder):
    assert use("ablation-trajectory") == (
        "presets/digits.yaml as presets/ablations/trajectory.yaml varies it",
        made("trajectory", "digits")[1],
    )
    assert use("ablation-size", "cifar10")[1] == made("size", "cifar10")[1]
    assert use("digits")[1] == (ROOT / "presets/digits.yaml").read_text()
    edited = use("ablation-size")[1].replace("seed: 0", "seed: 1")
    (folder / "params.yaml").write_text(edited)

    with refused(ConfigError, "params.yaml has been edited", "--force"):
        use("digits")

    assert (folder / "params.yaml").read_text() == edited
    (folder / "presets/wrong.yaml").write_text("name: wrong\n")
    with refused(ConfigError, "unknown key 'name'"):
        use("wrong", force=True)
    assert (folder / "params.yaml").read_text() == edited
    assert use("digits", force=True)[1] == (ROOT / "presets/digits.yaml").read_text()


def test_a_preset_that_is_not_there_writes_nothing(folder):
    known = "ablation-tau", "cifar10, cifar10-all"
    with refused(ConfigError, *known, "Did you mean 'ablation-size'?"):
        use("ablation-sise")
    with refused(ConfigError, "--base: presets/ablations/tau.yaml varies digits", "'cifar'"):
        use("ablation-tau", "cifar")
    with refused(ConfigError, "--base: digits is a complete preset"):
        use("digits", "cifar10")
    assert not (folder / "params.yaml").exists()


def table(seed):
    """Certificates of 40 images."""
    rng = np.random.default_rng(seed)
    predict = rng.choice([0, 0, 0, 1, -1], 40).tolist()
    return certificates(predict, [floor(rng.uniform(0, 0.8)) * (p != -1) for p in predict])


def evaluated(node):
    """Entries of all that params declare, each with certificates of its own."""
    whole = presets.parsed(presets.written(node))
    tables = {name: table(seed) for seed, name in enumerate(whole.evals)}
    return entries.entries(whole, tables, {})


def varied(found):
    return ablations.ablations(found, radii=ALL_RADII, confidence=0.95)


TAUS = {
    f"tau{i}": {"pretrain": {"loss": {"tau_contrast": tau, "tau_consistency": tau}}}
    for i, tau in enumerate([0.5, 0.05])
}


def test_the_numbers_are_the_statistics_of_the_certificates():
    found = evaluated(composed(TAUS))

    ((key, numbers),) = varied(found).items()

    assert key == "pretrain.loss.tau_contrast = tau_consistency"
    assert len(numbers) == len(found) * len(ALL_RADII)
    of = {entry.name: entry for entry in found}
    for row in numbers.itertuples():
        entry = of[row.entry]
        shares = statistics.certified_accuracy(entry.table, [row.radius], confidence=0.95)
        (share,) = shares.itertuples()
        acr = intervals.mean(statistics.credited(entry.table), confidence=0.95)
        assert (row.certified, row.low, row.high) == (share.value, share.low, share.high)
        assert (row.acr, row.acr_low, row.acr_high) == (acr.value, acr.low, acr.high)
        assert row.value == entry.settings["pretrain.loss.tau_contrast"]
        assert row.base == (row.entry == f"{RUN}-e050") and row.panel == "σ = 0.5"


def test_seeds_are_repeated_and_what_differs_in_two_things_is_left_out():
    """Two temperatures of one value are one thing; of two values, they are two."""
    odd = {"pretrain": {"loss": {"tau_contrast": 0.5, "tau_consistency": 0.1}}}
    again = {
        "again": {"run": {"seed": 1}, "pretrain": {"seed": 1}},
        "more": {"pretrain": {"steps": 60}},
        "more-again": {"run": {"seed": 1}, "pretrain": {"steps": 60}},
        "both": {"pretrain": {"steps": 60, "batch_size": 16}},
        "odd": odd,
    }
    found = evaluated(composed(again))

    ((key, numbers),) = varied(found).items()

    assert key == "pretrain.steps"
    drawn = numbers.drop_duplicates("entry")
    assert drawn["value"].tolist() == [30, 30, 60, 60]
    assert drawn["base"].tolist() == [True, True, False, False]


@pytest.mark.parametrize("name", VARIED)
def test_presets_vary_nothing_alone_but_what_they_are_made_for(name):
    whole = shipped(name)
    bare = {name: certificates([0, -1], [0.5, 0.0]) for name in whole.evals}

    assert set(varied(entries.entries(whole, bare, {}))) == VARIED[name]


def test_the_report_has_the_table_and_its_numbers(tmp_path, undrawn):
    found = evaluated(composed(TAUS))
    ((key, wanted),) = varied(found).items()

    report.write(found, tmp_path, radii=ALL_RADII, confidence=0.95, subject="digits")

    page = (tmp_path / "index.html").read_text()
    assert "One thing varied" in page and "95 % intervals (BCa bootstrap)" in page
    shown = ablations.text_table({key: wanted}, radii=ALL_RADII)
    assert shown["value"].tolist() == ["0.2 (base)", "0.5", "0.05"]
    for row, (_, part) in zip(
        shown.to_dict("records"), wanted.groupby("entry", sort=False), strict=True
    ):
        for radius, share in zip(part["radius"], part["certified"], strict=True):
            assert float(row[f"r = {radius:g}"].split()[0]) == pytest.approx(100 * share, abs=0.1)
        assert all(str(cell) in page for cell in row["ACR"].split(" ", 1))
    texts = [ablations.text(value) for value in ([], [0.5, 1.0], True, "a")]
    assert texts == ["none", "0.5, 1", "true", "a"]
    numbers = pd.read_csv(tmp_path / "ablations.csv")
    assert numbers["value"].tolist() == [v for v in (0.2, 0.5, 0.05) for _ in ALL_RADII]
    pd.testing.assert_frame_equal(numbers, wanted, check_exact=False, rtol=1e-8)
