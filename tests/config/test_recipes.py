"""The presets are the paper's recipes, number by number, and every kind of run in them trains.

Sources of a value: "log", the authors' logs of fine-tuning; "code", their released code; "paper",
Lei et al. (2025), arXiv:2501.13094. Where they disagree, the first of these that says it is taken;
docs/recipes.md has them side by side. Those of the baselines are in test_baselines.py.
"""

import math

import pytest
from helpers import shipped

from rrcm.models.networks import vit

CIFAR, IMAGENET, DIGITS = map(shipped, ("cifar10", "imagenet", "digits"))
PAPER = {"cifar10": CIFAR, "imagenet": IMAGENET}

SHAPES = {  # size, pixels, patch: paper; init, projector: code and logs
    ("cifar10", "b"): ("b", 32, 4, "pytorch", 2048, 256),
    ("imagenet", "s"): ("s", 224, 16, "xavier", 2048, 256),
    ("imagenet", "b"): ("b", 224, 16, "xavier", 4096, 256),
    ("imagenet", "b_deep"): ("b_deep", 224, 16, "xavier", 2048, 256),  # by the paper's 177M
}
PRETRAIN = {  # steps, batch: paper; the others: code; of B-Deep there is no code: B's
    ("cifar10", "b"): (300_000, 2048, 1e-4, 0.0, 10_000, 15.0, False),
    ("imagenet", "s"): (600_000, 4096, 1e-4, 0.01, 10_000, 10.0, True),
    ("imagenet", "b"): (600_000, 4096, 2e-4, 0.03, 15_000, 10.0, True),
    ("imagenet", "b_deep"): (600_000, 4096, 2e-4, 0.03, 15_000, 10.0, True),
}
FINETUNE = {  # epochs, batch, rate, warm-up epochs, layer decay, final LayerNorm: log
    ("cifar10", "s025"): (100, 1024, 2e-4, 10, 0.75, False),
    ("cifar10", "s050"): (100, 1024, 2e-4, 10, 0.75, False),
    ("cifar10", "s100"): (100, 1024, 2e-4, 10, 0.65, False),
    ("imagenet", "s025"): (150, 1024, 2e-4, 5, 0.65, True),
    ("imagenet", "s050"): (50, 1024, 2e-4, 5, 0.65, True),
    ("imagenet", "s100"): (150, 1024, 1e-4, 5, 0.65, True),
}
SIGMAS = {"s025": 0.25, "s050": 0.5, "s100": 1.0}
LAMBDA = {"s025": 10.0, "s050": 20.0, "s100": 20.0}  # paper, code and log
CUT = {"scale": [0.08, 1.0], "ratio": [0.75, 1.3333333]}
COLOUR = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.2, "hue": 0.1, "p": 0.8}
SEEN = [{"resized_crop": CUT}, {"jitter": COLOUR}, {"grey": {"p": 0.2}}]
VIEWS = {  # code: MoCo-v3's two views; the third only flipped
    "first": [*SEEN, {"blur": {"sigma": [0.1, 2.0], "p": 1.0}}, {"flip": {"p": 0.5}}],
    "second": [
        *SEEN,
        {"blur": {"sigma": [0.1, 2.0], "p": 0.1}},
        {"solarize": {"threshold": 0.5, "p": 0.2}},
        {"flip": {"p": 0.5}},
    ],
    "plain": [{"flip": {"p": 0.5}}],
}
AUGMENT = {  # log, but for CIFAR-10, where they have none
    **{("cifar10", name): [{"crop": {"pad": 4}}, {"flip": {"p": 0.5}}] for name in SIGMAS},
    ("imagenet", "s025"): [
        {"resized_crop": CUT},
        {"randaugment": {"policy": "rand-m9-mstd0.5-inc1"}},
        {"flip": {"p": 0.5}},
    ],
    ("imagenet", "s050"): [{"resized_crop": CUT | {"scale": [0.4, 1.0]}}, {"flip": {"p": 0.5}}],
    ("imagenet", "s100"): [{"flip": {"p": 0.5}}],
}


def cases(table):
    return pytest.mark.parametrize(("preset", "name"), [*table], ids="-".join)


@cases(SHAPES)
def test_networks_are_the_paper_s(preset, name):
    shape = vit.Config(**PAPER[preset].models[name])

    assert SHAPES[preset, name] == (
        *(shape.size, shape.image_size, shape.patch_size, shape.init),
        *(shape.projector_width, shape.projector_dim),
    )
    assert (shape.channels, shape.position_std) == (3, 0.02)  # code


@cases(PRETRAIN)
def test_pretraining_is_the_paper_s(preset, name):
    cfg = PAPER[preset].pretrain[name]
    steps, batch, lr, decay, warmup, steepness, frozen = PRETRAIN[preset, name]

    assert (cfg.model, cfg.objective, cfg.architecture) == (name, "rrcm", "vit")
    assert (cfg.steps, cfg.batch_size, cfg.freeze_patches) == (steps, batch, frozen)
    optimizer = cfg.optimizer
    assert (optimizer.lr, optimizer.weight_decay) == (lr, decay)
    assert math.ceil(optimizer.warmup * cfg.steps) == warmup and optimizer.horizon == 1
    assert (optimizer.clip, optimizer.clip_warmup) == (2.0, False)  # code
    grid = cfg.grid
    assert (grid.t_min, grid.t_max, grid.rho) == (0.002, 80.0, 7.0)  # code
    assert (grid.first, grid.last, grid.rule) == (20, 80, "reference")  # paper; code
    assert grid.sampling == "uniform"  # code
    target = cfg.target
    assert (target.start, target.end, target.steepness) == (0.99, 0.9999, steepness)  # code
    assert cfg.loss == {
        "tau_contrast": 0.2,
        "tau_consistency": 0.2,  # paper and code
        "consistency": 1.0,
        "symmetric": False,  # paper, and all code before 2025
        "align": [],  # options of the appendix
        "ema": 0.0,
    }
    assert cfg.augment == VIEWS


@cases(FINETUNE)
def test_finetuning_is_that_of_the_logs(preset, name):
    recipe = PAPER[preset].recipes[f"finetune-{name}"]
    epochs, batch, lr, warmup, decay, norm = FINETUNE[preset, name]

    assert (recipe.epochs, recipe.batch_size, recipe.layer_decay) == (epochs, batch, decay)
    assert (recipe.optimizer.lr, recipe.optimizer.weight_decay) == (lr, 0.0)
    assert recipe.optimizer.warmup * epochs == pytest.approx(warmup, rel=1e-4)
    assert recipe.final_norm is norm
    assert recipe.augment == AUGMENT[preset, name]
    mix = recipe.mix
    mixed = (0.8, 1.0, 1.0, 0.5, 0.1) if preset == "imagenet" else (0.0, 0.0, 1.0, 0.5, 0.0)
    assert mixed == (mix.mixup, mix.cutmix, mix.prob, mix.switch, mix.smoothing)


@pytest.mark.parametrize("preset", PAPER)
def test_every_model_is_trained_at_three_sigmas_and_certified_at_three(preset):
    whole = PAPER[preset]
    expected = {
        f"{size}-rrcm-{name}": (size, f"pretrained/{size}", f"finetune-{name}", sigma)
        for _, size in SHAPES.keys() & {(preset, model) for model in whole.models}
        for name, sigma in SIGMAS.items()
    }

    ours = {name: run for name, run in whole.runs.items() if "-rrcm-" in name}
    runs = {name: (run.model, run.start, run.recipe, run.sigma) for name, run in ours.items()}
    assert runs == expected
    for name, run in ours.items():
        loss = {"lbd": LAMBDA[name.rpartition("-")[2]], "eta": 0.5, "m": 2, "measure": "kl"}
        assert run.method == "rrcm" and run.loss == loss
    assert {name: (e.run, e.sigma) for name, e in whole.evals.items() if e.run in ours} == {
        f"{run}-e{name[1:]}": (run, sigma) for run in runs for name, sigma in SIGMAS.items()
    }


@pytest.mark.parametrize("preset", PAPER)
def test_certification_is_the_paper_s(preset):
    """Paper: n0 = 100, n = 100,000, alpha = 0.001; its radii; code: first 500 images."""
    whole, imagenet = PAPER[preset], preset == "imagenet"

    assert (whole.sample.n0, whole.sample.n, whole.certify.alpha) == (100, 100_000, 0.001)
    assert whole.certify.certificates[0] == "cohen"
    assert whole.sample.batch_size == (200 if imagenet else 500)  # code
    radii = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5] if imagenet else [0.0, 0.25, 0.5, 0.75, 1.0]
    assert {*radii} <= {*whole.report.radii}


def test_images_are_split_and_cut_as_usual():
    """CIFAR-10's 10,000 and ImageNet's 50,000 are certified; 224 of 256 pixels a side."""
    assert (CIFAR.data.name, CIFAR.data.test, CIFAR.data.size) == ("cifar10", 0, 32)
    assert (IMAGENET.data.name, IMAGENET.data.test, IMAGENET.data.size) == ("imagenet", 0, 224)
    assert IMAGENET.data.size / IMAGENET.data.crop == 256
    assert CIFAR.data.validation % 10 == IMAGENET.data.validation % 1000 == 0
