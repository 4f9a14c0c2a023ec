"""Training of denoisers: what the objectives ask for, and that a training does what it says."""

import copy
import dataclasses
import functools
import itertools
import math
import re
from pathlib import Path

import pytest
import torch
from helpers import DENOISING, MODEL, descent, equal, split
from torch import nn
from trainings import finish, resume

from rrcm.core import registry
from rrcm.core.errors import ConfigError
from rrcm.core.schema import parse
from rrcm.diffusion import condition, training
from rrcm.diffusion.objectives import diffusion
from rrcm.models.trained import denoiser
from rrcm.models.trained.base import classifier
from rrcm.models.trained.denoiser import Schedule, Times
from rrcm.training.engine.draws import Draws
from rrcm.training.engine.inputs.loading import Batch

NAMES = registry.names("denoiser_objectives")
LINEAR = Schedule(kind="linear", steps=12, rescale=True)
COSINE = Schedule(kind="cosine", steps=9, rescale=False)
EDM = Schedule(kind="edm", steps=0, rescale=False)
VP = [LINEAR, COSINE]
CONSTANTS = {
    **{name: {"sigma": 0.5} for name in ("mse", "stability")},
    "diffusion": {"schedule": dataclasses.asdict(EDM), "mean": -1.2, "std": 1.2},
}
UVIT = {"size": "16x3x2", "image_size": 8, "channels": 1, "patch_size": 4}
UVIT |= {"position_std": 0.5, "time_scale": 1000.0}
DNCNN = {"image_size": 8, "channels": 1, "depth": 3, "width": 8, "momentum": 0.1}
CFG = dataclasses.replace(
    DENOISING,
    network="dncnn",
    objective="mse",
    steps=8,
    optimizer=dataclasses.replace(DENOISING.optimizer, lr=1e-2, warmup=0.25),
    ema=0.75,
    loss={"sigma": 0.5},
    augment=[{"gain": {"amount": 0.1}}],
)
DIFFUSION = dataclasses.replace(
    CFG, network="uvit", objective="diffusion", loss=CONSTANTS["diffusion"]
)
TOLD = dataclasses.replace(DIFFUSION, guide="pretrained/tiny")
DATA = split(64, seed=0)


class Tiny(nn.Module):
    """A network that hears what it is told."""

    def __init__(self, channels=2):
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Conv2d(channels, channels, 3, padding=1)
        self.time = nn.Linear(1, channels)
        self.double()

    def forward(self, x, told):
        return self.inner(x) + self.time(told[:, None] / 100)[:, :, None, None]


def guiding():
    """A classifier of pixels [B, 2, 4, 4], with weights that nothing may move."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 3).double())


def pixels(rows=6):
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(rows, 2, 4, 4, dtype=torch.float64, generator=generator)
    return x, torch.arange(rows) % 3


def asked(name, network, *, step=0, rows=6, guide=None, **changed):
    """The loss of an objective, [B], for some pixels."""
    objective = registry.load("denoiser_objectives", name)
    cfg = parse(CONSTANTS[name] | changed, objective.Config, where="loss")
    x, y = pixels(rows)
    times = None if cfg.schedule is None else Times(cfg.schedule)
    guide = guide or (guiding() if objective.GUIDED else None)
    return objective.loss(network, x, y, guide=guide, times=times, draw=Draws(5, step), cfg=cfg)


def test_squared_error_is_of_pixels():
    x, _ = pixels()
    network, z = Tiny(), Draws(5, 0).normal(x)

    expected = [
        (network(x[i : i + 1] + 0.5 * z[i : i + 1], torch.zeros(1).double())[0] - x[i]) ** 2
        for i in range(6)
    ]

    torch.testing.assert_close(asked("mse", network), torch.stack(expected).mean(dim=(1, 2, 3)))


def test_a_guide_is_asked_of_the_denoised_image_for_what_it_says_of_the_image():
    x, y = pixels()
    network, guide, z = Tiny(), guiding(), Draws(5, 0).normal(x)
    log_p = guide(network(x + 0.5 * z, torch.zeros(6).double())).log_softmax(dim=1)
    said = guide(x).argmax(dim=1)

    assert not torch.equal(said, y)
    found = asked("stability", network, guide=guide)
    torch.testing.assert_close(found, -log_p[torch.arange(6), said])


@pytest.mark.parametrize("schedule", VP, ids=lambda s: s.kind)
def test_loss_of_a_vp_process_is_the_error_of_the_predicted_noise(schedule):
    """In the process's own coordinates, row by row, at times that are all as likely."""
    x, _ = pixels()
    network, draw = Tiny(), Draws(5, 0)
    u, z = draw.uniform(x), draw.normal(x)
    if schedule.kind == "linear":
        beta = [(0.1 + (20 - 0.1) * i / 11) / 12 for i in range(12)]  # 1e-4 to 0.02 of 1000 steps
    else:
        f = [math.cos((i / 9 + 0.008) / 1.008 * math.pi / 2) ** 2 for i in range(10)]
        beta = [1 - b / a for a, b in itertools.pairwise(f)]
    expected = []
    for i in range(6):
        t = int(u[i] * schedule.steps)
        kept = math.prod(1 - min(b, 0.999) for b in beta[: t + 1])
        noisy = math.sqrt(kept) * (2 * x[i] - 1) + math.sqrt(1 - kept) * z[i]
        told = torch.tensor([t * 1000 / 12 if schedule.rescale else t], dtype=torch.float64)
        expected.append((network(noisy[None], told)[0] - z[i]).square().mean())

    process = dataclasses.asdict(schedule)
    loss = asked("diffusion", network, schedule=process, mean=0.0, std=0.0)

    torch.testing.assert_close(loss, torch.stack(expected))


def test_loss_of_edm_is_karras_s():
    """With c_skip, c_out, c_in and the weight written out."""
    x, _ = pixels()
    network, draw = Tiny(), Draws(5, 0)
    s = (-1.2 + 1.2 * draw.normal(x[:, 0, 0, 0])).exp()
    clean, z = 2 * x - 1, draw.normal(x)
    expected = []
    for i in range(6):
        total = s[i] ** 2 + 0.25
        noisy = clean[i] + s[i] * z[i]
        answer = network((noisy / total.sqrt())[None], (s[i].log() / 4)[None])[0]
        denoised = 0.25 / total * noisy + 0.5 * s[i] / total.sqrt() * answer
        expected.append(total / (0.5 * s[i]) ** 2 * (denoised - clean[i]).square().mean())

    torch.testing.assert_close(asked("diffusion", network), torch.stack(expected))


def test_every_time_is_as_likely_and_levels_of_edm_are_lognormal():
    x = torch.zeros(20_000, 1, 1, 1)
    cfg = diffusion.Config(schedule=COSINE, mean=0.0, std=0.0)
    found = diffusion._times(x, Times(COSINE), Draws(0, 0), cfg)
    counts = torch.bincount(found.long(), minlength=9)

    assert torch.equal(found, found.round())
    assert ((counts - 20_000 / 9).abs() < 5 * math.sqrt(20_000 / 9)).all()

    levels = diffusion._times(
        x, Times(EDM), Draws(0, 1), diffusion.Config(schedule=EDM, mean=-0.4, std=0.7)
    ).log()
    assert levels.mean().item() == pytest.approx(-0.4, abs=5 * 0.7 / math.sqrt(20_000))
    assert levels.std().item() == pytest.approx(0.7, rel=0.03)


def test_a_network_that_predicts_variances_is_refused():
    class Learned(Tiny):
        def forward(self, x, told):
            return super().forward(x, told).repeat(1, 2, 1, 1)

    with pytest.raises(ConfigError, match="learned_variance: the objective diffusion trains no"):
        asked("diffusion", Learned())


@pytest.mark.parametrize("name", NAMES)
def test_objective(name):
    """The contract of a denoiser objective: a paper, a loss per image, gradients where they belong.

    Every parameter of the network gets one, and the guide none; training lowers the loss.
    """
    objective = registry.load("denoiser_objectives", name)
    network = Tiny()
    guide = guiding().eval().requires_grad_(False) if objective.GUIDED else None
    history = descent(network, lambda: asked(name, network, guide=guide), lr=0.02, steps=10)

    assert re.search(r"\(20\d\d\), arXiv:\d{4}\.\d{5}", objective.__doc__), "say which paper"
    assert asked(name, network, guide=guide).shape == (6,), "the trainer averages"
    assert history[-1] < history[0]
    told = [network.time.weight] if name != "diffusion" else []  # of zeros, but for its bias
    assert all(
        p.grad is not None and (p.grad.any() or any(p is q for q in told))
        for p in network.parameters()
    )


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mse", {"sigma": 0.0}, "sigma: must be positive"),
        ("stability", {"sigma": math.inf}, "sigma: expected a finite number, got inf"),
        ("diffusion", {"std": 0.0}, "std: must be positive"),
        (
            "diffusion",
            {"schedule": dataclasses.asdict(COSINE)},
            "mean, std: of edm alone, set them to 0, got -1.2",
        ),
    ],
)
def test_constants_that_mean_nothing_are_refused(name, change, message):
    with pytest.raises(ConfigError, match=message):
        asked(name, Tiny(), **change)


class Dropped(nn.Module):
    """A network whose training is random by itself."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Dropout(0.5))
        self.last = nn.Conv2d(4, 1, 3, padding=1)

    def forward(self, x, told):
        return self.last(self.inner(x))


def begin(name):
    """A training: its configuration and its state before the first step."""
    if name == "dropout":
        torch.manual_seed(0)
        network = Dropped()
        groups = [{"params": [*network.parameters()], "weight_decay": 0.0}]
        optimizer = torch.optim.SGD(groups, lr=1e-2)
        return (
            dataclasses.replace(CFG, ema=0.0),
            training.State(modules={"network": network}, optimizer=optimizer),
        )
    shapes = {"mse": (CFG, DNCNN), "diffusion": (DIFFUSION, UVIT)}
    cfg, shape = (shapes | {"told": (TOLD, UVIT | {"condition": 64})})[name]
    return cfg, training.start(cfg, shape)


@functools.cache
def told():
    """What tells a conditional network: an encoder with random weights."""
    torch.manual_seed(0)
    encoder = classifier.build(MODEL, classes=2, condition="exact", final_norm=True).encoder
    return condition.standardise(condition.Condition(encoder, t_min=0.002, t_max=80.0), DATA)


@pytest.mark.parametrize("name", ["mse", "diffusion", "told", "dropout"])
def test_resumed_is_uninterrupted_bit_for_bit(name, tmp_path):
    """Weights, statistics, their average, moments and log; amid the second epoch of four steps."""
    (cfg, _), guide = begin(name), told() if name == "told" else None

    resumed = resume(
        lambda: begin(name)[1],
        lambda state: training.denoise(state, DATA, cfg, guide),
        tmp_path,
        at=5,
    )
    assert resumed.gradients == 8 * 16


def test_what_is_kept_is_the_average_of_the_weights_and_the_last_statistics():
    cfg, state = begin("mse")
    network, expected = state.modules["network"], None
    for _ in training.denoise(state, DATA, cfg):
        now = {key: tensor.clone() for key, tensor in network.named_parameters()}
        if expected is None:
            expected = dict(begin("mse")[1].modules["network"].named_parameters())
        expected = {key: 0.75 * expected[key] + 0.25 * now[key] for key in now}
    result = training.result(state)

    assert result is not network
    for key, tensor in result.named_parameters():
        torch.testing.assert_close(tensor, expected[key])
    assert equal(dict(result.named_buffers()), dict(network.named_buffers()))
    assert all(not torch.equal(expected[key], now[key]) for key in now)


def test_no_steps_leave_the_start_as_it_is(tmp_path):
    cfg, state = begin("mse")
    before = finish(training.denoise(state, DATA, cfg)).modules["network"].state_dict()
    denoiser.save(tmp_path, before, network="dncnn", shape=DNCNN, schedule=None)
    cfg = dataclasses.replace(CFG, start=str(tmp_path), steps=0)

    state = training.start(cfg, DNCNN)
    assert [*training.denoise(state, DATA, cfg)] == []

    assert equal(training.result(state).state_dict(), before)


def test_a_guide_stays_as_it_is(tmp_path, monkeypatch):
    """In evaluation mode, without a gradient, told the sigma that it was trained at."""
    network = classifier.build(MODEL, classes=4, condition="exact", final_norm=True)
    nn.init.normal_(network.head.weight)
    told = {"condition": "exact", "final_norm": True, "sigma": 0.7}
    monkeypatch.chdir(tmp_path)
    folder = Path("models/one")
    classifier.save(folder, network.state_dict(), model=MODEL, config={"classes": "abcd", **told})
    cfg = dataclasses.replace(CFG, objective="stability", guide="models/one", steps=2)
    guide = training.load_guide(cfg, DNCNN, DATA)
    with pytest.raises(ConfigError, match=r"guide: models/one has channels 1, but models.uvit"):
        training.load_guide(cfg, DNCNN | {"channels": 3}, DATA)
    before = copy.deepcopy(guide.state_dict())
    x = torch.rand(2, 1, 8, 8)

    state = finish(training.denoise(training.start(cfg, DNCNN), DATA, cfg, guide.train()))

    torch.testing.assert_close(guide(x), network.eval()(x, torch.tensor(0.7)))
    assert equal(guide.state_dict(), before)
    assert not any(part.training for part in guide.modules())
    assert all(p.grad is None for p in guide.parameters())
    assert state.modules["network"].last.weight.any(), "the denoiser learns through it"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"guide": "models/x"}, "mse with a network of condition 0 asks for none; got models/x"),
        ({"objective": "stability"}, "stability with .* asks for models/<run>; got none"),
        (
            {"objective": "diffusion", "guide": "models/x"},
            "diffusion with .* asks for none; got models/x",
        ),
    ],
)
def test_a_guide_is_given_where_the_objective_wants_one(changed, message):
    constants = CONSTANTS.get(changed.get("objective"), CFG.loss)
    cfg = dataclasses.replace(CFG, **{"loss": constants} | changed)

    with pytest.raises(ConfigError, match=message):
        training.load_guide(cfg, DNCNN, DATA)


class Spy(nn.Module):
    """A conditional network that keeps what it is told."""

    def __init__(self):
        super().__init__()
        self.weight, self.heard = nn.Parameter(torch.ones(())), []

    def forward(self, x, told, c=None):
        self.heard.append(c)
        return self.weight * x


def test_a_conditional_network_is_told_the_representation_of_the_clean_image():
    """That of the very image, as it is augmented, at the clean end; the guide is not trained."""
    rows = torch.arange(6)
    batch = Batch(step=0, views={"image": torch.rand(6, 1, 8, 8)}, labels=rows, rows=rows)
    spy = Spy()
    training.loss_of(spy, told(), TOLD)(batch, Draws(0, 0))["diffusion"].mean().backward()

    (heard,) = spy.heard
    with torch.no_grad():
        clean = told().encoder(batch.views["image"], torch.tensor(0.001))  # t = 0.002
    torch.testing.assert_close(heard, (clean - told().mean) / told().std)
    assert not heard.requires_grad and all(p.grad is None for p in told().parameters())
    training.loss_of(spy, None, TOLD)(batch, Draws(0, 0))
    assert spy.heard[1] is None


@pytest.mark.parametrize(
    ("guide", "numbers", "message"),
    [
        ("none", 64, "network of condition 64 asks for pretrained/<name>; got none"),
        ("pretrained/tiny", 0, "of condition 0 asks for none; got pretrained/tiny"),
        ("pretrained/tiny", 3, "pretrained/tiny has 64 dimensions; set condition of models.uvit"),
    ],
)
def test_a_network_is_told_as_many_numbers_as_it_asks_for(guide, numbers, message, monkeypatch):
    monkeypatch.setattr(condition, "load", lambda *_, **__: told())
    cfg = dataclasses.replace(DIFFUSION, guide=guide)

    with pytest.raises(ConfigError, match=message):
        training.load_guide(cfg, UVIT | {"condition": numbers}, DATA)
    cfg = dataclasses.replace(cfg, guide="pretrained/tiny")
    assert training.load_guide(cfg, UVIT | {"condition": 64}, DATA) is told()
