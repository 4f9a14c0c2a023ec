"""The ledger is what its logs say, and docs/published.md is rendered from it."""

import dataclasses
import re

import numpy as np
import pandas as pd
import pytest
from workspace import ROOT

from benchmarks import audit
from benchmarks.field import ledger, paths
from benchmarks.field.page import SHOWN, browsed, page
from rrcm.auditing.attainable_radii import AttainableRadii
from rrcm.certification import tables, tsv
from rrcm.certification.votes import bounds
from rrcm.core.errors import DataError

FIELD = ROOT / "presets/field"
PAGE = (ROOT / "docs/published.md").read_text()
ROWS = ledger.read(FIELD / "ledger.csv.gz")
SALMAN = "Hadisalman__smoothing-adversarial/data/certify"
TAIL = "cifar10/resnet110/noise_0.50/test/sigma_0.50"
SAID = {  # a path -> what it says
    f"{SALMAN}/cifar10/finetune_cifar_from_imagenetPGD2steps/PGD_10steps_30epochs/eps_64/{TAIL}": (
        "cifar10 SmoothAdv (attack=PGD, T=10, eps=64/256) ImageNet32 resnet110 0.5 0.5"
    ),
    f"{SALMAN}/best_models/cifar10/ours_pretraining_selftraining/cifar10/"
    f"finetune_cifar_from_imagenetPGD2steps/self_training_PGD_6steps/weight_0.5/eps_512/{TAIL}": (
        "cifar10 SmoothAdv (attack=PGD, T=6, eps=512/256, w=0.5) ImageNet32 + 500k images "
        "resnet110 0.5 0.5"
    ),
    f"{SALMAN}/cifar10/PGD_2steps_baseAttackExp/without_noise/eps_127/"
    "cifar10/resnet110/noise_0.00/test/sigma_0.12": (
        "cifar10 SmoothAdv (attack=PGD, T=2, eps=127/256, attack on the base network without noise)"
        " none resnet110 0 0.12"
    ),
    "alinlab__smoothing-catrs/data/cifar10c/severity_3/cat_rs/fog.tsv": (
        "cifar10-c CAT-RS (severity=3, corruption=fog) none resnet110 0.25 0.25"
    ),
    "jh-jeong__smoothing-consistency/data/certify/mnist/consistency/salman_255.0_10_10/num_4/"
    "lbd_1.0/eta_0.5/noise_0.25_1": (
        "mnist consistency + SmoothAdv (T=10, m=4, eps=255/256, lbd=1, eta=0.5, warmup=10) none "
        "lenet 0.25 0.25"
    ),
    "eth-sri__acr-weakness/data/certify/imagenet/ours/noise_0.25": (
        "imagenet reweighting () none resnet50 0.25 0.25"
    ),
    "Me 2026/cifar10/mine,m=4, k=2/vit/extra_none/noise_0.5/test/sigma_0.25.tsv.gz": (
        "cifar10 mine (m=4, k=2) none vit 0.5 0.25"
    ),
}


@pytest.mark.parametrize("path", SAID)
def test_a_path_says_what_was_certified(path: str):
    said = paths.facts(path)

    numbers = f"{said.sigma_train:g} {said.sigma:g}"
    whole = f"{said.dataset} {said.method} ({said.constants}) {said.extra} {said.network} {numbers}"
    assert whole == SAID[path]
    assert sum(bool(re.fullmatch(pattern, path)) for _, pattern in paths.PATTERNS) == 1


@pytest.mark.parametrize("path", [*[*SAID][:3], [*SAID][-1]])
def test_a_path_that_no_pattern_matches_whole_is_refused(path: str):
    for other in (f"{path}/copy", f"more/{path}", re.sub("eps_|cifar10/mine", "x", path)):
        with pytest.raises(DataError, match=re.escape(f"{other}: no pattern")):
            paths.facts(other)


def test_every_row_has_the_facts_of_its_path():
    again = pd.DataFrame([dataclasses.asdict(paths.facts(file)) for file in ROWS["file"]])

    for name in ("source", "dataset", "method", "constants", "extra", "sigma", "sigma_train"):
        assert again[name].tolist() == ROWS[name].tolist(), name
    assert ROWS["file"].is_unique and ROWS["file"].is_monotonic_increasing


@pytest.mark.parametrize(
    ("owner", "dataset", "method", "sigma", "acr", "percent"),
    [  # released tables of those papers, 10,000 images; of ImageNet 500
        ("Jeong 2023", "cifar10", "CAT-RS", 0.5, 0.757, {0: 62.3, 0.5: 50.5, 1: 38.5}),
        ("Sun 2025", "cifar10", "reweighting", 1.0, 0.8437, {0: 42.0, 1: 31.1, 3: 11.6}),
        ("Sun 2025", "imagenet", "reweighting", 0.5, 0.8417, {0: 55.2, 1: 43.8, 1.75: 35.2}),
        ("Jeong 2023", "mnist", "CAT-RS", 1.0, 1.8306, {0: 93.2, 1.5: 64.0, 3: 12.0}),
        ("Jeong 2023", "cifar100", "CAT-RS", 0.25, 0.3122, {}),
    ],
)
def test_rows_have_the_numbers_of_their_papers(owner, dataset, method, sigma, acr, percent):
    rows = ROWS[(ROWS["source"] == owner) & (ROWS["dataset"] == dataset)]
    [row] = rows[(rows["method"] == method) & (rows["sigma"] == sigma)].to_dict("records")

    assert row["acr"] == pytest.approx(acr, abs=6e-4)
    shares = {r: 100 * row[f"r{r:g}"] / row["images"] for r in percent}
    assert shares == pytest.approx(percent, abs=0.051)


def test_votes_certify_no_more_than_the_radii_of_the_log():
    """Those of a log may be more: many radii were rounded up."""
    known = ROWS[ROWS["alpha"] == paths.ALPHA]
    for r in ledger.RADII:
        name = f"r{r:g}"
        assert not (known[f"{name}_low"] > known[f"{name}_high"]).any()
        assert not (known[f"{name}_low"] > known[name]).any()


def test_page_is_rendered_from_its_data(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert page(FIELD) == PAGE


def test_what_was_trained_here_is_as_its_own_page_says():
    text = (ROOT / "docs/results-mnist.md").read_text()
    given = pd.read_csv(FIELD / "printed.csv")
    for row in given[given["source"] == "trained here"].to_dict("records"):
        block = text.split(f"`lenet-{row['method']}-s{100 * row['sigma']:03.0f}-")[1].split("`")[1]
        ours = dict(re.findall(r"\| ([\d.]+) \| ([\d.]+) \|", block))
        assert ours == {f"{float(r):g}": f"{row[f'r{r}']:.2f}" for r in ours}


def test_the_page_of_all_rows_has_every_row_and_radius():
    found = browsed(FIELD)

    assert len(found["rows"]) == len(ROWS) and found["radii"] == ledger.RADII
    for (*cells, own, low), row in zip(found["rows"], ROWS.to_dict("records"), strict=True):
        assert cells[found["columns"].index("method")] == row["method"]
        assert own[1] == round(100 * row["r0"] / row["images"], 2) and len(low) == len(own)


@pytest.mark.parametrize("digits", [3, 6])
def test_the_radius_at_another_alpha_is_between_its_ends(digits: int, tmp_path):
    """Of votes that are known, at alpha = 0.01; six decimals leave one number of votes of 1,000."""
    n, sigma = (100_000, 0.5) if digits == 3 else (1_000, 0.25)
    truth = audit.simulate(np.random.default_rng(0), n=n, alpha=0.01, sigma=sigma, images=500)
    (audit.write_published if digits == 3 else tsv.write)(truth, tmp_path / "log.tsv")

    origin = audit.audit(tmp_path / "log.tsv", sigma=sigma).inferred[0]
    known = AttainableRadii(n=n, alpha=0.01, sigma=sigma, rounding=origin.rounding)
    low, high = ledger.restated(tables.read(tmp_path / "log.tsv"), known, paths.ALPHA)

    for k, predict, a, b in zip(
        truth["n_A"], truth["predict"], low["radius"], high["radius"], strict=True
    ):
        exact = bounds.radius(bounds.complement(k, n, paths.ALPHA), sigma=sigma)
        exact = max(exact, 0.0) if predict >= 0 else 0.0
        assert a - 1e-9 <= exact <= b + 1e-9 and (digits == 3 or b - a < 1e-9)
    assert (low["correct"] <= truth["correct"]).all()


def test_a_log_of_ones_own_becomes_a_row_and_its_audit_is_told(tmp_path):
    """CONTRIBUTING's "Add your log"; the same row again replaces it, and others stay."""
    rng, place = np.random.default_rng(0), "cifar10/mine/vit/extra_none/noise_0.5/test"
    for name, alpha in {"Me 2026": 0.001, "You 2026": 0.01}.items():
        path = tmp_path / name / place / "sigma_0.50.tsv"
        path.parent.mkdir(parents=True)
        truth = audit.simulate(rng, n=100_000, alpha=alpha, sigma=0.5, images=500)
        audit.write_published(truth.assign(idx=range(0, 10_000, 20)), path)

    found = ledger.measure(tmp_path, jobs=1)
    ledger.write(ledger.merged(FIELD / "ledger.csv.gz", found), tmp_path / "ledger.csv.gz")

    assert found["verdict"].tolist() == [ledger.CLEAN, ledger.OTHER]
    assert "alpha = 0.01, not of 0.001" in found["found"][1] and found["alpha"][1] == 0.01
    whole = ledger.merged(tmp_path / "ledger.csv.gz", found)
    assert len(whole) == len(ROWS) + 2


def test_every_log_that_was_added_is_clean_and_has_its_row():
    added = FIELD / "logs"
    found = ledger.measure(added, jobs=1) if added.exists() else ROWS[:0]

    assert (found["verdict"] == ledger.CLEAN).all(), found[["file", "found"]].to_string()
    known = ROWS.set_index("file")
    for row in found.to_dict("records"):
        same = known.loc[row["file"]]
        assert all(same[f"r{r:g}_low"] == row[f"r{r:g}_low"] for r in SHOWN["cifar10"])


def test_the_auditor_is_right_about_the_fields_logs():
    """No log of n = 100,000 and alpha = 0.001 is accused, and each that is another is named."""
    kinds = ROWS.groupby("source")["verdict"].value_counts()

    assert not ROWS["verdict"].isin([ledger.FAULTY]).any()
    assert (ROWS["verdict"] == ledger.UNCHECKED).mean() < 0.01
    assert kinds["Cohen 2019", ledger.OTHER] == (ROWS["alpha"] == 0.01).sum()
