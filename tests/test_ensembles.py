"""An ensemble is one function of the noisy input: its rule, its file, its prefixes, its place."""

import re
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import pytest
import torch
from builders import (
    PARAMS,
    SIGMA,
    changed,
    images,
    linear,
    plain,
    refused,
    save_classifier,
    split,
)
from helpers import MODEL, few
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from ruamel.yaml import YAML
from test_sample import CFG as LONG
from test_sample import CONSTANTS, rows
from torch import nn
from workspace import RUN, Workspace

from pipeline import requests
from pipeline.flow import naming
from rrcm import classifier, ensembles, prefixes, registry, sample, voters, votes
from rrcm import params as parameters
from rrcm.backends.onnx import DATA, GRAPH, unload, write
from rrcm.data import digits
from rrcm.ensembles import Combined
from rrcm.errors import BackendError, CheckpointError, ConfigError, VotesError
from rrcm.export import export_ensemble
from rrcm.files import sha256
from rrcm.settings import Ensemble, Export

RULES = ("mean_logits", "mean_probabilities", "plurality")
every_rule = pytest.mark.parametrize("rule", RULES)


class Given(nn.Module):
    """A member with scores [B, K] of its own, whatever it sees; ``asked`` counts."""

    def __init__(self, scores):
        super().__init__()
        self.scores, self.asked = torch.as_tensor(scores), 0

    def forward(self, *inputs):
        self.asked += 1
        return self.scores


def ensemble(scores, rule="mean_logits", consensus=0):
    """Members [k] with given scores [k, B, K]."""
    cfg = Ensemble(members=len(scores), rule=rule, consensus=consensus)
    return Combined([Given(s) for s in scores], cfg)


def naive(scores, rule):
    """The formula, in float64, of scores [k, K] of one row."""
    if rule == "mean_logits":
        return np.mean(scores, axis=0)
    if rule == "plurality":
        return np.array([sum(f.argmax() == c for f in scores) for c in range(len(scores[0]))])
    each = [np.exp(f - f.max()) / np.exp(f - f.max()).sum() for f in scores]
    return np.mean(each, axis=0)


def scores_of(low=-30.0, high=30.0, whole=False):
    """Scores [k, B, K] in float64; whole ones tie now and then."""
    shapes = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
    values = st.integers(0, 2).map(float) if whole else st.floats(low, high, width=32)
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


@few
@given(scores=scores_of(whole=True), copies=st.integers(1, 4), rule=st.sampled_from(RULES))
def test_copies_of_one_member_vote_like_it(scores, copies, rule):
    one = torch.tensor(scores[0])

    assert (ensemble([one] * copies, rule)().argmax(1) == one.argmax(1)).all()


def test_the_mean_of_one_member_is_the_member():
    one = torch.randn(5, 3)

    assert torch.equal(ensemble([one])(), one)
    assert torch.allclose(ensemble([one], "mean_probabilities")(), one.log_softmax(1))


@pytest.mark.parametrize(
    ("votes", "label"),
    [((0, 0, 1), 0), ((1, 1, 0), 1), ((2, 1, 0), 0), ((2, 1, 1, 2), 1), ((2,), 2), ((2, 0), 0)],
)
def test_a_plurality_wins_and_ties_go_to_the_lowest_class(votes, label):
    scores = torch.eye(3)[list(votes)][:, None]  # [k, 1, K]

    assert int(ensemble(scores, "plurality")().argmax()) == label


@few
@given(data=st.data(), rule=st.sampled_from(RULES), whole=st.booleans())
def test_a_consensus_of_the_first_decides_and_all_decide_elsewhere(data, rule, whole):
    scores = data.draw(scores_of(whole=whole).filter(lambda s: len(s) > 2))
    consensus = data.draw(st.integers(2, len(scores) - 1))
    found = ensemble(scores, rule, consensus)()

    for row, got in enumerate(found):
        first = {int(f.argmax()) for f in scores[:consensus, row]}
        if len(first) == 1:
            assert int(got.argmax()) == first.pop()
        else:
            everyone = ensemble(scores, rule)()[row]
            assert torch.equal(got, everyone)


def test_a_consensus_holds_though_rounding_makes_its_mean_tie():
    """Beyond 2, float32 has steps twice as large, and both sums round to the same one."""
    small = np.float32(2**-10)
    pair = torch.tensor(
        [[[2 - 5 * 2**-23, 2 - 2**-21]], [[small, np.nextafter(small, np.float32(1))]]]
    )
    mean = ensemble(pair)()

    assert (pair.argmax(2) == 1).all()
    assert mean[0, 0] == mean[0, 1]
    assert int(ensemble([*pair, torch.tensor([[9.0, 0.0]])], consensus=2)().argmax()) == 1


@few
@given(data=st.data(), rule=st.sampled_from(RULES))
def test_a_prefix_is_the_ensemble_of_so_many_members(data, rule):
    scores = data.draw(scores_of().filter(lambda s: len(s) > 2)).astype(np.float32)
    consensus = data.draw(st.sampled_from([0, *range(2, len(scores))]))
    found = ensemble(scores, rule, consensus).prefixes()

    assert found.shape == (scores.shape[1], len(scores), scores.shape[2])
    for j in range(1, len(scores) + 1):
        alone = ensemble(scores[:j], rule, consensus if consensus < j else 0)
        assert torch.equal(found[:, j - 1], alone())


@every_rule
def test_others_are_asked_only_where_the_first_disagree(rule):
    scores = torch.tensor([[[2.0, 1], [1, 2]], [[3, 1], [1, 3]], [[0, 9], [9, 0]]])
    whole = ensemble(scores, rule, consensus=2)
    agreed, (*_, third) = whole(), whole.members

    assert third.asked == 0
    whole.members[1].scores = scores[1].flip(0)
    whole()
    assert third.asked == 1
    assert (agreed.argmax(1) == torch.tensor([0, 1])).all()


@every_rule
@pytest.mark.parametrize("consensus", [0, 2])
@pytest.mark.parametrize("member", [0, 1, 2])
def test_a_number_that_is_none_stays_none(rule, consensus, member):
    """Where the member is asked; sampling then refuses it."""
    scores = torch.tensor([[[0.0, 1, 2]], [[0, 2, 3]], [[1, 0, 4]]])
    scores[member, 0, 2] = torch.nan
    asked = consensus == 0 or member < consensus
    found = ensemble(scores, rule, consensus)

    assert bool(found().isnan().any()) == asked
    assert bool(found.prefixes()[:, -1].isnan().any()) == asked


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
    cfg = Ensemble(members=2, rule="mean_logits", consensus=0)
    weights = set()
    for rule in (cfg.rule, cfg.rule, "plurality"):
        ensembles.save(tmp_path / "out", found, replace(cfg, rule=rule), code={})
        weights.add((tmp_path / "out/model.safetensors").read_bytes())
        made, config = ensembles.load(tmp_path / "out")
    x = torch.rand(5, 1, 8, 8, dtype=torch.float64)
    each = torch.stack([n(x.float(), torch.tensor(SIGMA)) for n, _ in found])

    assert len(weights) == 2  # the rule is a part of the function, and so of its name
    assert [m["run"] for m in config["members"]] == ["run-1", "run-2"]
    votes = nn.functional.one_hot(each.argmax(2), 10).sum(0)
    assert torch.equal(made.fix(SIGMA)(x), votes.double())
    backend = registry.load("backends", "torch").Backend
    (tmp_path / "models").mkdir()
    (tmp_path / "out").rename(tmp_path / "models/both")
    opened = partial(backend, tmp_path, "both", sigma=SIGMA, precision="fp32", device="cpu")
    assert torch.equal(opened(calibration=None).scores(x.float()), votes.float())
    stacked = opened(calibration=None, prefixes=True).scores(x.float())
    assert torch.equal(stacked[:, 1], votes.float())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"classes": [f"c{i}" for i in range(10)]}, "other classes"),
        ({"image_size": 16}, "other pictures ([C, H, W] = [1, 8, 8] and [1, 16, 16])"),
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


CONSENSUS = Ensemble(members=3, rule="mean_probabilities", consensus=2)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A root with an ensemble of three, and one of its first two, as ONNX files."""
    root = tmp_path_factory.mktemp("root")
    for run, cfg in (("whole", CONSENSUS), ("two", replace(CONSENSUS, members=2, consensus=0))):
        network = combined(cfg)
        about = {"run": run, "weights": 64 * "0", "classes": list(digits.CLASSES)}
        about |= {"sigma": SIGMA, "ensemble": {"members": cfg.members, "consensus": cfg.consensus}}
        check = Export(opset=20, parity_images=16, tolerance=1e-4)
        record = export_ensemble(
            network, network, root / f"onnx/{run}.onnx", split(16), about, check
        )
        assert record["max_abs_difference"] < 1e-4
        assert record["argmax_agreement"] == 1
    return root


def combined(cfg=CONSENSUS):
    nets = [Scaled(seed) for seed in range(cfg.members)]
    return Combined(nets, cfg).eval().requires_grad_(False)


def opened(root, run="whole", precision="fp32", **how):
    x = torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    backend = registry.load("backends", "onnx").Backend
    how |= {"device": "cpu", "calibration": lambda: x}
    return backend(root, run, sigma=SIGMA, precision=precision, **how)


def test_the_file_is_the_expression(exported):
    """Whether the first agree on all rows, on some, or on none."""
    network, sigma = combined(), torch.tensor(SIGMA)
    x = torch.randn(4000, 1, 8, 8)
    first = [member(x, sigma).argmax(1) for member in network.members[:2]]
    agreed = first[0] == first[1]
    assert 32 < agreed.sum() < 3900
    whole, stacked = opened(exported), opened(exported, prefixes=True)
    close = partial(torch.testing.assert_close, atol=1e-4, rtol=0)
    for batch in (x[agreed][:32], x[~agreed][:32], x[:32]):
        close(whole.scores(batch), network(batch, sigma))
        close(stacked.scores(batch), network.prefixes(batch, sigma))
    mixed = torch.cat([x[agreed][:16], x[~agreed][:16]])  # of which no member is spared
    assert torch.equal(whole.scores(mixed)[:16], whole.scores(x[agreed][:32])[:16])


def test_a_folder_of_an_ensemble_spares_members_as_its_file_does(exported, tmp_path):
    """Its weights are read within branches, too."""
    model, folder = onnx.load(exported / "onnx/whole.onnx"), tmp_path / "onnx/whole.onnx"
    folder.mkdir(parents=True)
    unload(model, folder / DATA)
    about = {prop.key: prop.value for prop in model.metadata_props}
    onnx.helper.set_model_props(model, about | {DATA: sha256(folder / DATA)})
    write(model, folder / GRAPH)
    x = torch.randn(64, 1, 8, 8)

    for how in ({}, {"prefixes": True}, {"precision": "fp16"}):
        whole, apart = opened(exported, **how), opened(tmp_path, **how)
        assert torch.equal(apart.scores(x), whole.scores(x))


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_any_precision_votes_row_by_row_and_its_prefixes_are_its_own(exported, precision):
    whole = opened(exported, precision=precision)
    stacked = opened(exported, precision=precision, prefixes=True)
    x = torch.randn(32, 1, 8, 8)

    assert voters.rows_are_alone(whole, x)
    assert voters.rows_are_alone(stacked, x)
    assert torch.equal(stacked.scores(x)[:, 2], whole.scores(x))
    two = opened(exported, "two", precision=precision)
    assert torch.equal(stacked.scores(x)[:, 1], two.scores(x))


# One pass for all prefixes.

FEW = images(4)
CFG = replace(LONG, n=300, batch_size=64)
BIAS = ((0.0, 0.1, 0.2), (2.5, 0.0, 0.2), (0.1, 6.0, 0.0))


class Several:
    """Linear classifiers as an ensemble of the first ``members``, or all its prefixes."""

    provider, weights, device, normals = "float64", "0" * 64, torch.device("cpu"), ()
    classes = ("0", "1", "2")

    def __init__(self, members=3, *, stacked=False):
        self.members, self.stacked = [linear(b) for b in BIAS[:members]], stacked
        consensus = 2 if members > 2 else 0
        self.cfg = Ensemble(members=members, rule="mean_logits", consensus=consensus)

    def scores(self, x):
        each = ensemble([member.scores(x) for member in self.members], consensus=self.cfg.consensus)
        return each.prefixes() if self.stacked else each()


def defined(cfg):
    return sample.header(Several(), FEW, "both", SIGMA, cfg, CONSTANTS[cfg.stop])


def together(cfg, folder, *, workers=1, every=5.0):
    """The votes files of all prefixes, from one pass."""
    heads = prefixes.headers(defined(cfg), 3)
    paths = [folder / f"{j}.jsonl" for j in (1, 2, 3)]
    for _ in prefixes.sample(
        Several(stacked=True), FEW, heads, paths, workers=workers, every=every
    ):
        pass
    assert not [*folder.glob("*.journal")]
    return [path.read_bytes() for path in paths]


@cache
def alone(changes):
    """The votes files of all prefixes, each from a pass of its own."""
    found, cfg = [], replace(CFG, **dict(changes))
    for j, head in zip((1, 2, 3), prefixes.headers(defined(cfg), 3), strict=True):
        with TemporaryDirectory() as folder:
            path = Path(folder, "votes")
            list(sample.sample(Several(j), FEW, head, Path(folder, "journal"), path, workers=1))
            found.append(path.read_bytes())
    return found


EXTRAS = ({"soft": 2.0}, {"label_aware": True}, {"soft": 2.0, "label_aware": True})


@pytest.mark.parametrize(
    ("stop", "extra"), [*((stop, {}) for stop in CONSTANTS), *(("grid", e) for e in EXTRAS)]
)
def test_a_prefix_has_the_votes_that_it_would_have_alone(tmp_path, stop, extra):
    changes = {"stop": stop, **extra}

    assert together(replace(CFG, **changes), tmp_path) == alone(tuple(changes.items()))


def test_prefixes_stop_apart(tmp_path):
    """Or the test above would show little."""
    found = [rows(file) for file in together(replace(CFG, stop="grid"), tmp_path)]
    ends = [[row["looks"][-1][0] for row in file.values()] for file in found]

    assert len({tuple(end) for end in ends}) == 3
    assert any(len({*end}) > 1 for end in zip(*ends, strict=True))


@cache
def journals(soft):
    """What the journals hold before they are removed, having heard of every look."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(votes, "write", lambda *arguments: None)
        patch.setattr(Path, "unlink", lambda path: None)
        heads = prefixes.headers(defined(replace(CFG, stop="grid", soft=soft)), 3)
        paths = [Path(folder, f"{j}.jsonl") for j in (1, 2, 3)]
        backend = Several(stacked=True)
        list(prefixes.sample(backend, FEW, heads, paths, workers=1, every=-1.0))
        return [path.with_suffix(".journal").read_bytes() for path in paths]


@settings(deadline=None, max_examples=10)
@given(data=st.data(), soft=st.sampled_from([0.0, 2.0]), together_=st.booleans())
def test_prefixes_resumed_after_any_cut_are_the_uninterrupted_ones(data, soft, together_):
    """Even if the journals were cut at different places."""
    cfg = replace(CFG, stop="grid", soft=soft)
    with TemporaryDirectory() as folder:
        share = data.draw(st.floats(0, 1))
        for j, journal in enumerate(journals(soft), start=1):
            share = share if together_ else data.draw(st.floats(0, 1))
            Path(folder, f"{j}.journal").write_bytes(journal[: int(share * len(journal))])
        found = together(cfg, Path(folder), workers=2)

    assert found == alone((("stop", "grid"), ("soft", soft)))


def test_a_prefix_is_named_after_its_ensemble():
    heads = prefixes.headers(defined(CFG), 3)

    assert [head.run for head in heads] == ["both-first1", "both-first2", "both"]
    assert len({head.weights for head in heads}) == 3
    assert heads[2] == defined(CFG)
    named = {"run", "weights"}
    assert all(
        {f for f in votes.Header.__slots__ if getattr(h, f) != getattr(heads[2], f)} == named
        for h in heads[:2]
    )
    assert [prefixes.parts(head.run) for head in heads] == [
        ("both", 1),
        ("both", 2),
        ("both", None),
    ]


@pytest.mark.parametrize("changes", [{"paired": 50}, {"budget": 5.0}])
def test_prefixes_need_draws_that_nothing_cuts_short(changes):
    with refused(ConfigError, "prefixes: "):
        prefixes.headers(replace(defined(CFG), **changes), 3)


def test_votes_of_another_ensemble_are_not_continued(tmp_path):
    (tmp_path / "1.journal").write_bytes(journals(0.0)[1])

    with refused(VotesError, "run was 'both-first2'"):
        together(replace(CFG, stop="grid"), tmp_path)


def test_a_score_of_a_prefix_that_is_no_number_is_refused(tmp_path, monkeypatch):
    scores = Several.scores
    monkeypatch.setattr(Several, "scores", lambda self, x: scores(self, x) * torch.nan)

    with refused(BackendError, "NaN scores for image"):
        together(CFG, tmp_path)


def test_a_single_network_has_no_prefixes(tmp_path):
    save_classifier(tmp_path, "a-run")
    graph = onnx.helper.make_graph([], "none", [], [])
    about = {"run": "a-run", "weights": "0", "classes": "[]"}
    model = onnx.helper.make_model(graph)
    onnx.helper.set_model_props(model, about)
    (tmp_path / "onnx").mkdir()
    write(model, tmp_path / "onnx/a-run.onnx")

    for name in registry.names("backends"):
        opened = partial(registry.load("backends", name).Backend, tmp_path, "a-run", sigma=SIGMA)
        with refused(BackendError, "no ensemble, so that there are no prefixes"):
            opened(precision="fp32", device="cpu", calibration=None, prefixes=True)


# In params.yaml.

BOTH = {
    "ensembles": {"tiny-both-s050": {"members": 2, "rule": "mean_logits", "consensus": 0}},
    "members": {
        "second": {"ensemble": "tiny-both-s050", "place": 2, "run": "tiny-gaussian-s050"},
        "first": {"ensemble": "tiny-both-s050", "place": 1, "run": RUN},
    },
}


def written(tmp_path, *changes):
    node = plain(PARAMS) | BOTH
    for dotted, value in changes:
        node = changed(node, dotted, value)
    YAML().dump(node, tmp_path / "params.yaml")
    return tmp_path / "params.yaml"


def test_an_ensemble_is_described_as_a_run_is(tmp_path):
    found = parameters.load(
        written(
            tmp_path,
            ("evals.both", {"run": "tiny-both-s050", "architecture": "vit", "sigma": 0.5}),
        )
    )
    whole = found.classifiers()["tiny-both-s050"]

    assert found.runs_of("tiny-both-s050") == [RUN, "tiny-gaussian-s050"]  # by place
    assert (whole.model, whole.method, whole.sigma) == ("tiny", "boosting", 0.5)
    for model in ("tiny-both", "tiny-both-s050"):
        named = requests.find_run(found, model=model, method="rrcm", sigma=0.5)
        assert named == "tiny-both-s050"
    assert naming.tags("sample@both", found) == ["model:tiny", "method:boosting", "sigma:0.5"]
    assert naming.tags("combine@tiny-both-s050", found) == naming.tags("sample@both", found)
    assert naming.tags("member@first", found) == ["model:tiny", "method:rrcm", "sigma:0.5"]


MEMBERS = "ensembles.tiny-both-s050.members"


@pytest.mark.parametrize(
    ("dotted", "value", "said"),
    [
        ("members.first.place", 2, f"{MEMBERS}: 2 need the places 1 to 2, each once, and"),
        (MEMBERS, 3, "members have [1, 2]"),
        ("members.first.run", "tiny-rrcm-s51", "members.first.run: 'tiny-rrcm-s51' is not in runs"),
        ("members.first.ensemble", "none", "'none' is not in ensembles (tiny-both-s050)"),
        ("ensembles.tiny-both-s050.consensus", 2, "below members = 2, got 2"),
        ("ensembles.tiny-both-s050.consensus", 1, "consensus: must be 0, or at least 2"),
        ("ensembles.tiny-both-s050.rule", "mean", "rule: must be mean_logits or mean_prob"),
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


def test_an_ensemble_may_not_have_the_name_of_a_run(tmp_path):
    ensembles, places = {RUN: BOTH["ensembles"]["tiny-both-s050"]}, {}
    for name, member in BOTH["members"].items():
        places[name] = member | {"ensemble": RUN}
    path = written(tmp_path, ("ensembles", ensembles), ("members", places))

    with refused(ConfigError, f"ensembles.{RUN}: a run has this name"):
        parameters.load(path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "tiny"}, f"--prefixes: {RUN} is no ensemble of params.yaml (tiny-both-s050)"),
        ({"budget": "5s"}, "--prefixes does not go with --budget"),
        ({"devices": "cpu,cpu"}, "--prefixes does not go with --devices"),
        ({"shard": "1/2"}, "--prefixes does not go with --shard"),
    ],
)
def test_prefixes_that_cannot_be_had_are_refused(tmp_path, monkeypatch, options, said):
    written(tmp_path)
    (tmp_path / "onnx").mkdir()
    for run in (RUN, "tiny-both-s050"):
        (tmp_path / f"onnx/{run}.onnx").touch()
    monkeypatch.chdir(tmp_path)
    asked = {"model": "tiny-both", "sigma": 0.5, "prefixes": True}

    assert requests.resolve(asked).prefixes
    with refused(ConfigError, said):
        requests.resolve(asked | options)


# In the graph.


@pytest.mark.slow
def test_an_ensemble_is_made_sampled_and_its_prefixes_are_certified(checkout: Workspace):
    """Another member makes its ensemble again, and no other; one removed is told of."""

    def add(params):
        other = {"members": 1, "rule": "plurality", "consensus": 0}
        params["ensembles"] = BOTH["ensembles"] | {"other": other}
        params["members"] = BOTH["members"] | {
            "other-1": {"ensemble": "other", "place": 1, "run": "tiny-gaussian-s050"}
        }
        params["evals"]["both"] = {"run": "tiny-both-s050", "architecture": "vit", "sigma": 0.5}

    checkout.edit(add)
    made = checkout.repro("certify@both", "combine@other")
    assert made == {
        *("member@first", "member@second", "member@other-1", "combine@other"),
        *("combine@tiny-both-s050", "sample@both", "certify@both"),
    }
    files = checkout.digest("models/tiny-both-s050/*") | checkout.digest("onnx/tiny-both-s050.onnx")
    checkout.run("rm", "-r", ".dvc/cache/runs")
    checkout.repro("--force", "--single-item", "combine@tiny-both-s050")
    again = checkout.digest("models/tiny-both-s050/*") | checkout.digest("onnx/tiny-both-s050.onnx")
    assert again == files

    asked = ("rrcm", "certify", "--model", "tiny-both", "--sigma", ".5")
    said = checkout.run(*asked, "--prefixes")
    assert "boosting, first 1" in said and "stale" not in said
    kept = re.findall(r"(\S+): (results/\S+\.csv), (\S+\.jsonl)", said)
    assert [run for run, _, _ in kept] == ["tiny-both-s050-first1", "tiny-both-s050"]
    whole = (checkout.path / kept[1][2]).read_bytes()
    assert whole == (checkout.path / "votes/both.jsonl").read_bytes()
    single = checkout.path / "votes/tiny-rrcm-s050-e050.jsonl"
    first = (checkout.path / kept[0][2]).read_bytes()
    assert first.splitlines()[1:] == single.read_bytes().splitlines()[1:]

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
