"""An ensemble is one function of the noisy input: its rule, its file, its place."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import PARAMS, SIGMA, changed, export_to, opened, plain, refused, split
from helpers import MODEL, few
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from ruamel.yaml import YAML
from torch import nn
from workspace import MORE, RUN, Workspace

from pipeline.project import runs
from rrcm.certification.sampling import drawing
from rrcm.config import params as parameters
from rrcm.config.certification import Ensemble
from rrcm.core.errors import BackendError, CheckpointError, ConfigError
from rrcm.data.datasets import digits
from rrcm.models.trained import ensembles
from rrcm.models.trained.base import classifier
from rrcm.models.trained.ensembles import EnsembleClassifier

RULES = ("mean_logits", "mean_probabilities")
every_rule = pytest.mark.parametrize("rule", RULES)


class Given(nn.Module):
    """A member with constant scores [B, K]."""

    def __init__(self, scores):
        super().__init__()
        self.scores = torch.as_tensor(scores)

    def forward(self, *inputs):
        return self.scores


def ensemble(scores, rule="mean_logits"):
    """Members [k] with given scores [k, B, K]."""
    cfg = Ensemble(members=len(scores), rule=rule)
    return EnsembleClassifier([Given(s) for s in scores], cfg)


def naive(scores, rule):
    """The formula, in float64, of scores [k, K] of one row."""
    if rule == "mean_logits":
        return np.mean(scores, axis=0)
    each = [np.exp(f - f.max()) / np.exp(f - f.max()).sum() for f in scores]
    return np.mean(each, axis=0)


def scores_of(low=-30.0, high=30.0):
    """Scores [k, B, K] in float64."""
    shapes = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
    values = st.floats(low, high, width=32)
    return shapes.flatmap(lambda shape: arrays(np.float64, shape, elements=values))


# The rule.


@few
@given(scores=scores_of(), rule=st.sampled_from(RULES))
def test_each_rule_is_its_formula(scores, rule):
    found = ensemble(scores, rule)().numpy()

    for row, got in enumerate(found):
        want = naive(scores[:, row], rule)
        got = np.exp(got) if rule == "mean_probabilities" else got
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@every_rule
def test_scores_of_ten_thousand_stay_finite(rule):
    scores = torch.tensor([[[1e4, -1e4, 0.0]], [[-1e4, 1e4, 0.0]]])
    found = ensemble(scores, rule)()

    assert found.isfinite().all()
    if rule == "mean_probabilities":
        torch.testing.assert_close(found.softmax(1), torch.tensor([[0.5, 0.5, 0.0]]))


@every_rule
def test_what_is_no_number_in_any_member_stays_none(rule):
    """Sampling then refuses it."""
    scores = torch.tensor([[[0.0, 1, 2]], [[0, 2, 3]], [[1, 0, 4]]])
    for odd in (torch.nan, torch.inf):
        scores[1, 0, 2] = odd
        assert not ensemble(scores, rule)().amax().isfinite()


# On disk, in one file.


def trained(seed, **changes):
    torch.manual_seed(seed)
    model = replace(MODEL, shape=MODEL.shape | changes)
    network = classifier.build(model, classes=10, condition="exact", final_norm=True)
    nn.init.normal_(network.head.weight)
    return network.eval().requires_grad_(False), model


def members(folder, count=2, *, classes=digits.CLASSES, **changes):
    """Runs of random weights, where the stage `member` puts them; the last has the changes."""
    for place in range(1, count + 1):
        last = place == count
        network, model = trained(place, **(changes if last else {}))
        about = {"run": f"run-{place}", "sigma": SIGMA, "condition": "exact", "final_norm": True}
        about["classes"] = list(classes if last else digits.CLASSES)
        classifier.save(folder / str(place), network.state_dict(), model=model, config=about)
    return folder


def test_what_is_saved_is_the_ensemble(tmp_path):
    found = ensembles.read(members(tmp_path / "in"), 2)
    cfg = Ensemble(members=2, rule="mean_logits")
    weights = set()
    for rule in (cfg.rule, cfg.rule, "mean_probabilities"):
        ensembles.save(tmp_path / "out", found, replace(cfg, rule=rule), code={})
        weights.add((tmp_path / "out/model.safetensors").read_bytes())
        made, config = ensembles.load(tmp_path / "out")
    x = torch.rand(5, 1, 8, 8, dtype=torch.float64)
    each = torch.stack([n(x.float(), torch.tensor(SIGMA)) for n, _ in found])

    assert len(weights) == 2  # the rule is a part of the function, and so of its name
    assert [m["run"] for m in config["members"]] == ["run-1", "run-2"]
    wanted = each.softmax(2).mean(0).log().double()
    torch.testing.assert_close(made.fix(SIGMA)(x), wanted, atol=1e-5, rtol=1e-4)
    (tmp_path / "models").mkdir()
    (tmp_path / "out").rename(tmp_path / "models/both")
    got = opened(tmp_path, "both", kind="torch").scores(x.float())
    torch.testing.assert_close(got, wanted.float(), atol=1e-5, rtol=1e-4)


def test_lanes_adds_what_its_members_score(tmp_path):
    """Its bits are theirs; an exponential has other bits on another processor."""
    found, x = ensembles.read(members(tmp_path / "models"), 2), torch.rand(5, 1, 8, 8)
    for rule in RULES:
        ensembles.save(tmp_path / "models" / rule, found, Ensemble(members=2, rule=rule), code={})

    both, *each = (opened(tmp_path, of, kind="lanes").scores(x) for of in (RULES[0], "1", "2"))

    assert torch.equal(both, (each[0] + each[1]) / 2)
    assert not torch.equal(*each)
    with refused(BackendError, f"models/{RULES[1]}", "ensembles of them by mean_logits"):
        opened(tmp_path, RULES[1], kind="lanes")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"classes": [f"c{i}" for i in range(10)]}, "other classes"),
        ({"image_size": 16}, "other pictures [C, H, W]: [1, 8, 8] and [1, 16, 16]"),
        ({"channels": 3}, "other pictures"),
    ],
)
def test_members_that_do_not_fit_are_named(tmp_path, change, said):
    with refused(CheckpointError, "run-1 and run-2", said):
        ensembles.read(members(tmp_path, **change), 2)


def test_a_member_too_many_or_too_few_is_named(tmp_path):
    members(tmp_path)

    with refused(CheckpointError, f"{tmp_path}/2: not one of the 1 members", "remove it"):
        ensembles.read(tmp_path, 1)
    with refused(CheckpointError, f"{tmp_path}/3/config.json: not found"):
        ensembles.read(tmp_path, 3)


class Scaled(nn.Module):
    """The smallest network that is told sigma."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(64, 10)
        nn.init.normal_(self.linear.weight)

    def forward(self, x, sigma):
        return self.linear(x.flatten(1)) * (1 + sigma)


THREE = Ensemble(members=3, rule="mean_probabilities")


def test_the_file_is_the_expression_and_votes_row_by_row_in_any_precision(tmp_path):
    """Purified classifiers export means of probabilities, too; tracing takes seconds."""
    nets = [Scaled(seed) for seed in range(THREE.members)]
    network = EnsembleClassifier(nets, THREE).eval().requires_grad_(False)
    path, of = tmp_path / "onnx/three.onnx", {"ensemble": {"members": THREE.members}}
    record = export_to(path, network, network, split(16), **of)
    x, precisions = torch.randn(32, 1, 8, 8), ("fp32", "fp16", "int8")

    found = {p: opened(tmp_path, "three", p, calibration=lambda: x) for p in precisions}

    assert (record["argmax_agreement"], record["undecided"]) == (1, 0)
    torch.testing.assert_close(found["fp32"].scores(x), network(x, torch.tensor(SIGMA)))
    assert all(drawing.is_batch_invariant(one, x) for one in found.values())


# In params.yaml.

BOTH = {section: plain(MORE)[section] for section in ("ensembles", "members")}


def written(tmp_path, *changes):
    node = plain(PARAMS) | BOTH
    for dotted, value in changes:
        node = changed(node, dotted, value)
    YAML().dump(node, tmp_path / "params.yaml")
    return tmp_path / "params.yaml"


def test_an_ensemble_is_described_as_a_run_is(tmp_path):
    found = parameters.load(written(tmp_path, ("evals.both", plain(MORE)["evals"]["both"])))
    whole = found.classifiers()["tiny-both-s050"]

    assert found.runs_of("tiny-both-s050") == [RUN, "tiny-gaussian-s050"]  # by place
    assert (whole.model, whole.method, whole.sigma) == ("tiny", "boosting", 0.5)
    for model in ("tiny-both", "tiny-both-s050"):
        named = runs.find_run(found, model=model, method="rrcm", sigma=0.5, eval_sigma=0.5)
        assert named == "tiny-both-s050"


MEMBERS = "ensembles.tiny-both-s050.members"


@pytest.mark.parametrize(
    ("dotted", "value", "said"),
    [
        ("members.first.place", 2, f"{MEMBERS}: 2 need the places 1 to 2, each once, and"),
        ("members.first.run", "tiny-rrcm-s51", "members.first.run: 'tiny-rrcm-s51' is not in runs"),
        ("members.first.ensemble", "none", "'none' is not in ensembles (tiny-both-s050)"),
        (
            "evals.both",
            {"run": "tiny-both-s050", "architecture": "resnet", "sigma": 0.5},
            "evals.both.architecture: 'resnet' is not in its run tiny-both-s050 (vit)",
        ),
    ],
)
def test_an_ensemble_that_makes_no_sense_takes_one_line(tmp_path, dotted, value, said):
    path = written(tmp_path, (dotted, value))

    with refused(ConfigError, said):
        parameters.load(path)


# In the graph.


@pytest.mark.slow
def test_an_ensemble_is_made_sampled_and_certified(extended: Workspace, tmp_path: Path):
    """Another member makes its ensemble again, and no other; one removed is told of."""
    checkout = extended.copy(tmp_path / "a copy")

    def add(params):
        params["ensembles"]["other"] = {"members": 1, "rule": "mean_logits"}
        member = {"ensemble": "other", "place": 1, "run": "tiny-gaussian-s050"}
        params["members"]["other-1"] = member

    checkout.edit(add)
    assert checkout.repro("certify@both", "combine@other") == {"member@other-1", "combine@other"}
    asked = ("rrcm", "certify", "--model", "tiny-both", "--sigma", ".5")
    said = checkout.run(*asked)
    assert "boosting" in said and "votes/both.jsonl" in said and "stale" not in said
    report = checkout.run("rrcm", "report", "--only", "both")
    assert "boosting" in report and "stale" not in report

    def swap(params):
        params["members"]["first"]["run"] = "tiny-gaussian-s050"

    checkout.edit(swap)
    changed = "members.first.run was 'tiny-rrcm-s050', is now 'tiny-gaussian-s050'"
    assert f"stale: tiny-both-s050: {changed}" in checkout.run(*asked)
    made = checkout.repro("certify@both", "combine@other")
    changed = {"member@first", "combine@tiny-both-s050", "sample@both", "certify@both"}
    assert made == changed

    def drop(params):
        params["ensembles"]["tiny-both-s050"]["members"] = 1
        del params["members"]["second"]

    checkout.edit(drop)
    said = checkout.run("dvc", "repro", "combine@tiny-both-s050", fails=True)
    assert "ensembles/tiny-both-s050/2: not one of the 1 members" in said
