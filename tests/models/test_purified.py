"""A classifier behind a purifier is one function of (x, z), and z is new for each draw."""

import copy
import json
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from ballot_counters import counting, pieces
from builders import (
    SIGMA,
    Linear,
    export_to,
    lasting,
    linear,
    opened,
    refused,
    save_classifier,
    split,
)
from sampling_runs import CFG as LONG
from sampling_runs import SIX, sampled
from torch import nn
from torch.nn import functional as F

from rrcm.certification.sampling import drawing
from rrcm.config.certification import Ensemble, Local, Purified
from rrcm.core import registry
from rrcm.core.errors import BackendError, CheckpointError, ConfigError
from rrcm.core.files import sha256
from rrcm.diffusion.networks import dncnn
from rrcm.models.trained import denoiser, ensembles, purified
from rrcm.models.trained.base import classifier
from rrcm.models.trained.denoiser import Denoiser, Schedule, Times
from rrcm.models.trained.purified import Precise, PurifiedClassifier, Resize
from rrcm.noise import streams

SHAPE = {"channels": 1, "image_size": 8, "depth": 3, "width": 4, "momentum": 0.1}
COSINE = Schedule(kind="cosine", steps=40, rescale=False)
PLAIN = Local(copies=0, sigma=0.0, fixed=True, seed=0)
DDS = Purified(
    method="dds", sigma=SIGMA, denoiser="denoisers/small", network="dncnn", run="a-run",
    architecture="vit", purifier="one_shot", purify={"rule": "first"}, votes=1, local=PLAIN,
)  # fmt: skip
STEPS = {"steps": 2, "rule": "first", "variance": "small"}
DENSE = replace(DDS, purifier="multi_step", purify=STEPS, votes=2)
FIXED = replace(DDS, local=Local(copies=2, sigma=0.25, fixed=True, seed=0))
OTHER = replace(DDS, local=Local(copies=2, sigma=0.25, fixed=True, seed=1))
FRESH = replace(DDS, local=replace(FIXED.local, fixed=False))
BOTH = replace(DENSE, local=FRESH.local)


@cache
def parts() -> Path:
    """A folder with a run and a denoiser of random weights, both of the digits; made once."""
    save_classifier(root := lasting(), "a-run")
    save_denoiser(root, "small", COSINE)
    save_denoiser(root, "direct", None)
    return root


def save_denoiser(root: Path, name: str, schedule: Schedule | None, side: int = 8) -> None:
    torch.manual_seed(0)
    shape = SHAPE | {"image_size": side}
    network = dncnn.Network(dncnn.Config(**shape))
    nn.init.normal_(network.last.weight, std=0.3)
    denoiser.save(
        root / "denoisers" / name,
        network.state_dict(),
        network="dncnn",
        shape=shape,
        schedule=schedule,
    )


def save(folder: Path, cfg: Purified, pictures=(1, 8, 8)):
    return purified.save(folder, cfg, root=parts(), pictures=pictures, code=[])


@cache
def function(cfg: str) -> PurifiedClassifier:
    """The function of one of the constants above, in float64."""
    with TemporaryDirectory() as folder:
        save(Path(folder), globals()[cfg])
        return purified.load(Path(folder))[0].double()


def batch(rows=5, shape=(1, 8, 8), seed=0):
    return torch.rand(rows, *shape, dtype=torch.float64, generator=generator(seed))


def normal(rows, shape):
    return torch.randn(rows, *shape, dtype=torch.float64, generator=generator(1))


def generator(seed):
    return torch.Generator().manual_seed(seed)


LEVEL = torch.tensor(SIGMA, dtype=torch.float64)


# The function.


def test_it_is_the_classifier_of_the_purified_picture():
    """Of the parts on disk; told the sigma that the classifier was trained for."""
    x, level = batch(), torch.tensor(0.3, dtype=torch.float64)
    behind, _ = denoiser.load(parts() / "denoisers/small")
    run, _ = ensembles.load(parts() / "models/a-run")
    purify = registry.load("purifiers", "one_shot")
    clean = purify.Purifier(behind.double(), purify.Config(rule="first"))(x, level)

    found = function("DDS")(x, level)

    torch.testing.assert_close(found, run(clean, LEVEL), rtol=1e-9, atol=1e-9)
    assert torch.equal(function("DDS").fix(0.3)(x), found)


def test_a_learned_denoiser_stands_before_the_classifier_as_it_is(tmp_path):
    cfg = replace(DDS, denoiser="denoisers/direct", purifier="learned", purify={})
    save(tmp_path, cfg)
    network, x = purified.load(tmp_path)[0].double(), batch()
    direct, _ = denoiser.load(parts() / "denoisers/direct")
    run, _ = ensembles.load(parts() / "models/a-run")

    expected = run(direct.double()(x, torch.zeros(len(x))), LEVEL)

    torch.testing.assert_close(network(x, LEVEL), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["DENSE", "FIXED", "FRESH", "BOTH"])
def test_scores_are_those_of_the_formula(name):
    """A plurality over votes of the mean of probabilities over copies, one call after the other."""
    network, cfg, x = function(name), globals()[name], batch()
    z = normal(len(x), network.normals) if network.normals else None
    reverse = 1 if cfg.purifier == "multi_step" else 0
    fields = None if z is None else z.unflatten(1, (cfg.votes, -1)).unbind(1)
    counts = torch.zeros(len(x), 10, dtype=torch.float64)
    for vote in range(cfg.votes):
        own = None if fields is None else fields[vote]
        clean = network.purifier(x, LEVEL, own if own is None else own[:, :reverse])
        deltas = network.copies if own is None else own[:, reverse:].transpose(0, 1)
        seen = [clean + 0.25 * delta for delta in deltas] if cfg.local.copies else [clean]
        likely = torch.stack([network.classifier(image).softmax(1) for image in seen]).mean(0)
        counts += F.one_hot(likely.argmax(1), 10) if cfg.votes > 1 else likely

    found = network(x, LEVEL, z)

    expected = counts if cfg.votes > 1 else counts.log()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    if cfg.votes > 1:  # near ties of a vote excuse a difference of a whole vote
        outputs = network.parity_outputs(x, LEVEL, z)
        assert network.decided(outputs, tolerance=1e-9).all()
        assert not network.decided(outputs, tolerance=1e3).any()


def test_fixed_copies_are_normal_numbers_of_their_seed_and_of_no_noise():
    delta = function("FIXED").copies
    other = function("OTHER").copies
    draws, zero = torch.arange(2), torch.zeros(2, dtype=torch.int64)

    assert delta.shape == (2, 1, 8, 8)
    assert not torch.equal(delta[0], delta[1])
    assert not torch.equal(delta, other)
    for stream in range(7):
        drawn = streams.gaussian(0, zero, draws, (1, 8, 8), stream=stream)
        assert not (delta == drawn).any()


@pytest.mark.parametrize(("old", "new"), [(32, 224), (8, 20), (28, 8), (7, 7)])
def test_resizing_is_that_of_torch(old, new):
    x = batch(3, (2, old, old))

    expected = F.interpolate(x, size=(new, new), mode="bicubic", antialias=True)

    torch.testing.assert_close(Resize(old, new)(x), expected, rtol=0, atol=1e-12)


class Unchanged(nn.Module):
    """A purifier that gives back what it gets."""

    def forward(self, x, sigma, z=None):
        return x


def test_bfloat16_rounds_networks_and_nothing_between_them(tmp_path):
    """The classifier is given, bit for bit, what it is in float32: resized, with fixed noise.

    Pictures have 4 pixels a side, as the denoiser's; the classifier's have 8.
    """
    save_denoiser(parts(), "four", COSINE, side=4)
    save(tmp_path, replace(FIXED, denoiser="denoisers/four"), pictures=(1, 4, 4))
    x, seen = batch(shape=(1, 4, 4)).float(), []
    for precision in (torch.float32, torch.bfloat16):
        network, config = purified.load(tmp_path)
        network.purifier = Unchanged()
        network.classifier.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        fixed = network.fix(SIGMA).to(precision)
        fixed(x)
        kept = {t.dtype for t in (network.copies, network.resize.matrix)}
        assert kept <= {torch.float32, torch.float64}
        assert {t.dtype for t in network.classifier.parameters()} == {precision}

    assert seen[0].dtype == torch.float32 and seen[0].shape == (10, 1, 8, 8)
    assert torch.equal(*seen)
    assert config["pictures"] == [1, 4, 4] and network.copies.shape == (2, 1, 8, 8)
    with refused(ConfigError, "local.fixed", "set fixed: true"):
        save(tmp_path, replace(FRESH, denoiser="denoisers/four"), pictures=(1, 4, 4))


def test_levels_of_the_schedule_stay_exact_in_short_floats(tmp_path):
    """A time that is off by one of four thousand would be another function."""
    network = function("DDS")
    before = network.purifier.denoiser.times.levels

    save(tmp_path, DDS)
    short = purified.load(tmp_path)[0].to(torch.bfloat16)

    assert torch.equal(short.purifier.denoiser.times.levels, before)
    assert short.fix(SIGMA)(batch().float()).isfinite().all()


# On disk.


OTHERS = {
    "purifier": {"purifier": "multi_step", "purify": {**STEPS, "steps": 1}},
    "purify": {"purify": {"rule": "nearest"}},
    "votes": {"votes": 3},
    "copies": {"local": replace(PLAIN, copies=2, sigma=0.25)},
    "sigma": {"local": replace(PLAIN, copies=2, sigma=0.5)},
    "fixed": {"local": replace(PLAIN, copies=2, sigma=0.25, fixed=False)},
    "seed": {"local": replace(PLAIN, copies=2, sigma=0.25, seed=1)},
    "denoiser": {"denoiser": "denoisers/other"},
    "run": {"run": "b-run"},
}


def test_another_function_has_another_name(tmp_path):
    """And the same function the same one, whatever a table calls it."""
    save_denoiser(parts(), "other", replace(COSINE, steps=50))
    network, config = classifier.load(parts() / "models/a-run")
    nn.init.normal_(network.head.weight)
    model = classifier.Model(**config.pop("model"))
    classifier.save(parts() / "models/b-run", network.state_dict(), model=model, config=config)
    start = {"votes": replace(DENSE, votes=2)}
    names = {}
    for key, change in OTHERS.items():
        save(tmp_path, replace(start.get(key, DDS), **change))
        names[key] = sha256(tmp_path / "model.safetensors")
    for cfg in (DDS, replace(DDS, method="other", sigma=1.0)):
        save(tmp_path, cfg)
        names["none"] = sha256(tmp_path / "model.safetensors")
        assert names.setdefault("first", names["none"]) == names["none"]

    assert len({*names.values()}) == len(OTHERS) + 1


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"denoiser": "denoisers/none"}, CheckpointError, "denoisers/none/config.json: not found"),
        ({"run": "none"}, CheckpointError, "models/none/config.json: not found"),
        ({"votes": 2}, ConfigError, "2 votes without randomness are all the same"),
        ({"purifier": "learned", "purify": {}}, ConfigError, "use one_shot or multi_step"),
        ({"denoiser": "denoisers/direct"}, ConfigError, "one_shot needs a diffusion model"),
        ({"purifier": "one_shoot"}, ConfigError, "Did you mean 'one_shot'?"),
        ({"purify": {"rule": "last"}}, ConfigError, "purified: purify.rule: must be"),
        ({"purify": {}}, ConfigError, "purified: purify: missing rule"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(tmp_path, change, error, said):
    with refused(error, said):
        save(tmp_path / "out", replace(DDS, **change))

    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key", ["purified", "denoiser", "classifier", "pictures"])
def test_a_damaged_file_is_named(tmp_path, key):
    config = save(tmp_path, DDS)
    config[key] = [] if key != "purified" else {}
    (tmp_path / "config.json").write_text(json.dumps(config))

    with refused(CheckpointError, f"{tmp_path / 'config.json'}: damaged"):
        purified.load(tmp_path)


# As one ONNX file, and in PyTorch.


class Small(nn.Module):
    """A denoiser's network of two convolutions, with channels for a variance."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 2, 1))

    def forward(self, x, told):
        x = (
            x.contiguous() if x.shape[0] >= 64 else x
        )  # as diffusers' UNet: the tracer guards the rows
        return self.layers(x + 0.01 * told[:, None, None, None])


LINEAR = Schedule(kind="linear", steps=1000, rescale=False)
EDM = Schedule(kind="edm", steps=0, rescale=False)  # whose file is the quickest to export


def tiny(votes: int, fixed: bool, schedule: Schedule = LINEAR) -> PurifiedClassifier:
    """Several calls for a noisy input: votes of as many steps each; two copies of either."""
    torch.manual_seed(1)
    purify = registry.load("purifiers", "multi_step")
    cfg = purify.Config(steps=votes, rule="exact" if fixed else "first", variance="learned")
    behind = Denoiser(Precise(Small()), Times(schedule))
    fields = votes * (votes - 1 + (0 if fixed else 2))
    return PurifiedClassifier(
        purify.Purifier(behind, cfg),
        nn.Sequential(nn.Flatten(), nn.Linear(144, 10)),
        Resize(8, 12) if fixed else Resize(12, 12),
        votes=votes,
        normals=(fields, 1, 12, 12) if fields else (),
        local=Local(copies=2, sigma=0.25, fixed=fixed, seed=0),
        copies=torch.randn(2, 1, 12, 12) if fixed else None,
    ).eval()


def written(root: Path, network: PurifiedClassifier, pictures: int) -> tuple[Any, dict[str, Any]]:
    """What opens the exported file of a function, and the parity of the file."""
    found = split(16)
    found = replace(found, images=np.repeat(found.images, 2, axis=2).repeat(2, axis=3))
    found = replace(found, images=found.images[:, :, :pictures, :pictures])
    path, folded = root / "onnx/pure.onnx", copy.deepcopy(network)
    record = export_to(path, network, folded, found, purified={})
    return partial(opened, root, "pure", sigma=0.3), record


@pytest.mark.parametrize(
    ("votes", "fixed", "side", "schedule"),
    [
        (3, False, 12, EDM),
        pytest.param(2, False, 12, LINEAR, marks=pytest.mark.slow),
        pytest.param(1, True, 8, LINEAR, marks=pytest.mark.slow),
    ],
)
def test_the_file_is_the_function(tmp_path, votes, fixed, side, schedule):
    """Of (x, sigma, z): votes of as many steps each, their copies fresh; or fixed ones, resized."""
    network = tiny(votes, fixed, schedule)
    function, record = written(tmp_path, network, side)
    ours = function("fp32")
    x = batch(12, (1, side, side)).float()
    given = (x, normal(12, network.normals).float()) if network.normals else (x,)
    expected = network.fix(0.3)(*given)

    assert record["max_abs_difference"] < 1e-4
    assert ours.normals == network.normals == (() if fixed else (votes * (votes + 1), 1, 12, 12))
    torch.testing.assert_close(ours.scores(*given), expected, rtol=0, atol=1e-4)
    assert drawing.is_batch_invariant(ours, x)
    half = function("fp16").scores(*given)
    assert (half.argmax(1) == expected.argmax(1)).float().mean() > 0.8
    if not fixed:
        with refused(BackendError, "int8 takes its ranges", "random, too"):
            function("int8")


def test_an_ensemble_may_stand_behind(tmp_path):
    """All members classify each call."""
    runs = [classifier.load(parts() / "models/a-run") for _ in range(2)]
    rule = Ensemble(members=2, rule="mean_logits")
    ensembles.save(parts() / "models/two", runs, rule, code={})
    save(tmp_path, replace(DDS, run="two"))
    network, x = purified.load(tmp_path)[0].double(), batch()

    alone = function("DDS")(x, LEVEL)

    torch.testing.assert_close(network(x, LEVEL), alone)
    outputs = network.parity_outputs(x, LEVEL)
    assert [*outputs] == ["scores", "call_1", "call_2"]
    assert network.decided(outputs, tolerance=1e3).all()  # no whole votes are counted


# Randomness, as the certifier gives it.


class Random(Linear):
    """Linear scores of x and of what z adds to it; ``seen`` are all (x, z) that were asked for."""

    normals = (3, 1, 2, 2)

    def __init__(self, *parts, **how) -> None:
        super().__init__(*parts, **how)
        self.seen = []

    def scores(self, x, z):
        self.seen.append((x.clone(), z.clone()))
        return super().scores(x + 0.5 * z.sum(dim=1))


def asked(*parts, component="gaussian", batch_size=7):
    """All x, all z [N, 3, 1, 2, 2] and the counts that draws of pieces ask for."""
    backend = linear(kind=Random)
    counts = counting(backend, component=component, batch_size=batch_size)(pieces(*parts))
    x, z = (torch.cat(each) for each in zip(*backend.seen, strict=True))
    return x, z, counts


@pytest.mark.parametrize("component", ["gaussian", "sound"])
def test_every_draw_has_normal_numbers_of_its_own(component):
    """None is shared by draws, by images, by the votes of a draw, or with the noise of the pixels.

    With shared ones, draws would not be independent, and the certificate would not hold.
    """
    rows = 400
    x, z, _ = asked((0, 0, rows), (1, 0, rows), component=component, batch_size=rows)
    place = torch.from_numpy(SIX.pixels(np.array([0] * rows + [1] * rows)))
    pixel = (x - place) / SIGMA
    fields = torch.cat([z, pixel[:, None]], dim=1).flatten(2)  # [2 rows, 4, 4]

    if component != "sound":  # whose noise has repeated values
        assert len(fields.flatten().unique()) > 0.999 * fields.numel()
    assert len(z.flatten().unique()) > 0.999 * z.numel()
    columns = torch.stack([*fields[:rows].flatten(1).T, *fields[rows:].flatten(1).T])
    apart = columns.corrcoef() - torch.eye(len(columns))
    shifted = columns[:, 1:], columns[:, :-1]  # the draw before
    before = torch.stack([(a * b).mean() for a, b in zip(*shifted, strict=True)])
    assert apart.abs().max() < 0.25  # five times what chance makes of 400 draws
    assert before.abs().max() < 0.25
    assert abs(z.mean()) < 0.05
    assert abs(z.var() - 1) < 0.05


def test_normal_numbers_are_those_of_seed_image_and_draw_in_a_stream_of_their_own():
    _, z, _ = asked((4, 10, 5), batch_size=5)
    image, draw = torch.full((5,), int(SIX.idx[4])), torch.arange(10, 15)

    expected = streams.gaussian(2**40 + 3, image, draw, (3, 1, 2, 2), stream=6)

    assert torch.equal(z, expected)


def test_votes_of_a_random_classifier_depend_on_seed_image_and_draw_alone():
    parts = [(0, 0, 20), (3, 5, 11), (5, 100, 9)]
    *_, counts = asked(*parts)

    for size in (1, 4, 64):
        *_, again = asked(*parts[::-1], batch_size=size)
        assert [c.tolist() for c in again[::-1]] == [c.tolist() for c in counts]
    for part, count in zip(parts, counts, strict=True):
        assert asked(part)[2][0].tolist() == count.tolist()
    short = replace(LONG, n=60)
    random = partial(linear, kind=Random)
    whole = sampled(short, make=random)
    assert sampled(short, make=random, workers=3) == whole
    assert sampled(short, make=linear) != whole
