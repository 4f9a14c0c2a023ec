"""The presets have the baselines as they were published, number by number.

Sources: "code", the authors' released code, its arguments and the names of its logs; for those of
CIFAR-10, also the commands that Horváth et al. (2022), arXiv:2106.06946, publish for all they
train. What has no such source is "not verified" in the preset and is not asserted here.
"""

import pytest
from helpers import shipped

from rrcm.training.engine import loop

CIFAR, IMAGENET = map(shipped, ("cifar10", "imagenet"))
SIGMAS = {"s025": 0.25, "s050": 0.5, "s100": 1.0}
METHODS = {
    "cifar10": {
        *("gaussian", "stability", "consistency", "smoothadv", "smoothadv_consistency"),
        *("macer", "smoothmix", "boosting"),
    },
    "imagenet": {"gaussian", "consistency", "smoothadv", "macer", "smoothmix", "boosting"},
}
PRESETS = {"cifar10": (CIFAR, "r110", 10), "imagenet": (IMAGENET, "r50", 3)}
LBD = {  # Consistency's and stability training's lambda at the three sigmas
    ("cifar10", "consistency"): (20.0, 10.0, 10.0),
    ("imagenet", "consistency"): (10.0, 5.0, 5.0),
    ("cifar10", "stability"): (2.0, 2.0, 1.0),
    ("cifar10", "smoothadv_consistency"): (2.0, 1.0, 1.0),
}
ATTACKS = {  # attack, 256 epsilon, steps, noisy copies at the three sigmas
    ("cifar10", "smoothadv"): [("pgd", 255, 10, 8), ("pgd", 512, 2, 2), ("pgd", 512, 10, 2)],
    ("cifar10", "smoothadv_consistency"): [
        *[("pgd", 255, 10, 4), ("pgd", 512, 10, 2), ("pgd", 512, 10, 2)]
    ],
    ("imagenet", "smoothadv"): [("ddn", 512, 2, 1), ("pgd", 255, 1, 1), ("pgd", 512, 1, 1)],
}


def runs(preset, method):
    """Those at the three sigmas, ascending, of seed 0."""
    whole, model, _ = PRESETS[preset]
    return [whole.runs[f"{model}-{method}-{name}"] for name in SIGMAS]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_baseline_is_trained_and_certified_at_three_sigmas(preset):
    whole, model, _ = PRESETS[preset]
    wanted = {f"{model}-{method}-{name}" for method in METHODS[preset] for name in SIGMAS}

    assert wanted <= whole.classifiers().keys()
    for name in wanted:
        sigma = SIGMAS[name[-4:]]
        found = whole.evals[f"{name}-e{name[-3:]}"]
        assert (found.run, found.sigma) == (name, sigma)
        assert whole.classifiers()[name].sigma == sigma


@pytest.mark.parametrize("preset", PRESETS)
def test_all_but_macer_are_trained_by_cohen_et_al_s_recipe(preset):
    """Code. 256 images with their noisy copies in a step, where each copy is trained on."""
    whole, model, _ = PRESETS[preset]
    epochs, drop = {"cifar10": (150, 50), "imagenet": (90, 30)}[preset]
    for name, run in whole.runs.items():
        if run.model != model or run.method == "macer":
            continue
        recipe, optimizer = whole.recipes[run.recipe], whole.recipes[run.recipe].optimizer
        assert recipe.batch_size * run.loss.get("m", 1) == 256, name
        assert (run.architecture, run.start) == ("resnet", "none")
        assert (recipe.epochs, recipe.selection) == (epochs, "last")
        assert (optimizer.algorithm, optimizer.lr, optimizer.momentum) == ("sgd", 0.1, 0.9)
        assert optimizer.weight_decay == 1e-4
        rates = [rate(recipe, epoch) for epoch in (0, drop - 1, drop, 2 * drop - 1, 2 * drop)]
        assert rates == pytest.approx([1, 1, 0.1, 0.1, 0.01])
        assert rate(recipe, epochs - 1) == pytest.approx(0.01)


def rate(recipe, epoch, *, per_epoch=5000):
    """Share of the peak at the first step of an epoch, of about as many steps as there are."""
    steps = recipe.epochs * per_epoch
    return loop.rate(epoch * per_epoch, recipe.optimizer, steps=steps, per_epoch=per_epoch)


def test_macer_is_trained_on_cifar10_as_published():
    """Code: 440 epochs, the rate 0.01 falls after 200 and 400; lambda 12 and 4; 16 copies of 64."""
    recipe = CIFAR.recipes["macer"]
    optimizer = recipe.optimizer

    assert (recipe.epochs, recipe.batch_size, optimizer.lr) == (440, 64, 0.01)
    assert (optimizer.weight_decay, optimizer.momentum) == (5e-4, 0.9)
    assert [rate(recipe, epoch) for epoch in (199, 200, 399, 400)] == pytest.approx(
        [1, 0.1, 0.1, 0.01]
    )
    found = runs("cifar10", "macer")
    assert [run.loss["lbd"] for run in found[:2]] == [12.0, 4.0]
    for run in found:
        assert run.loss == {"gamma": 8.0, "beta": 16.0, "m": 16} | {
            key: run.loss[key] for key in ("lbd", "defer")
        }
    assert [run.loss["defer"] for run in found[:2]] == [0.0, 0.0]


@pytest.mark.parametrize(("preset", "method"), LBD, ids="-".join)
def test_weights_of_agreement_are_those_published(preset, method):
    found = runs(preset, method)

    assert tuple(run.loss["lbd"] for run in found) == LBD[preset, method]
    if method == "consistency":
        etas = (0.5, 0.5, 0.1 if preset == "imagenet" else 0.5)
        assert tuple(run.loss["eta"] for run in found) == etas
        assert {(run.loss["m"], run.loss["measure"]) for run in found} == {(2, "kl")}


@pytest.mark.parametrize(("preset", "method"), ATTACKS, ids="-".join)
def test_attacks_of_smoothadv_are_those_published(preset, method):
    """Code: epsilon is divided by 256, and on CIFAR-10 rises during 10 epochs."""
    for run, wanted in zip(runs(preset, method), ATTACKS[preset, method], strict=True):
        loss = run.loss
        assert (loss["attack"], 256 * loss["epsilon"], loss["steps"], loss["m"]) == wanted
        assert loss["multi_noise"] is (preset == "cifar10")
        assert 150 * loss["warmup"] == pytest.approx(10 if preset == "cifar10" else 0, abs=1e-3)


def test_smoothmix_is_trained_on_cifar10_as_published():
    """Code: alpha 0.5, 1 and 2, four steps, two copies, eta 5 after 10 epochs."""
    for run, alpha in zip(runs("cifar10", "smoothmix"), (0.5, 1.0, 2.0), strict=True):
        loss = run.loss
        assert (loss["alpha"], loss["steps"], loss["m"], loss["eta"]) == (alpha, 4, 2, 5.0)
        assert 150 * loss["warmup"] == pytest.approx(10, abs=1e-3)
        assert (loss["one_step"], loss["max_norm"]) == (False, float("inf"))


@pytest.mark.parametrize("preset", PRESETS)
def test_colours_are_normalised_as_published(preset):
    """Code: Cohen et al.'s, behind the noise."""
    whole, model, _ = PRESETS[preset]
    shape = whole.models[model]

    assert (shape["mean"], shape["std"]) == (
        ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010])
        if preset == "cifar10"
        else ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    )
    assert (shape["size"], shape["image_size"]) == (model[1:], whole.data.size)


def test_mnist_has_the_recipes_of_the_published_table():
    """Logs and code of Jeong & Shin (2020), arXiv:2006.04062."""
    whole = shipped("mnist-all")
    lbd = {"consistency": (10, 5, 5), "stability": (2, 2, 2), "macer": (16, 16, 6)}
    copies = {"consistency": 2, "smoothadv": 4, "smoothadv_consistency": 4}
    methods = {*lbd, *copies, "gaussian"}

    assert whole.runs.keys() == {f"lenet-{m}-{s}" for m in methods for s in SIGMAS}
    for name, run in whole.runs.items():
        method, sigma = name.removeprefix("lenet-").split("-")
        recipe = whole.recipes[run.recipe]
        optimizer = recipe.optimizer
        assert (run.sigma, run.start) == (SIGMAS[sigma], "none")
        assert (recipe.epochs, recipe.selection, recipe.augment) == (90, "last", [])
        assert recipe.batch_size * run.loss.get("m", 1) == 256
        assert run.loss.get("m", 1) == copies.get(method, 16 if method == "macer" else 1)
        assert (optimizer.algorithm, optimizer.momentum) == ("sgd", 0.9)
        assert (optimizer.weight_decay, optimizer.clip) == (1e-4, float("inf"))
        rates = [
            0.01 * loop.rate(epoch, optimizer, steps=90, per_epoch=1)
            for epoch in (0, 29, 30, 59, 60)
        ]
        assert rates == pytest.approx([1e-2, 1e-2, 1e-3, 1e-3, 1e-4])
        if method in lbd:
            assert run.loss["lbd"] == lbd[method][[*SIGMAS].index(sigma)]
        if "smoothadv" in method:
            wanted = {"attack": "pgd", "epsilon": 1.0, "steps": 10, "multi_noise": True}
            assert wanted.items() <= run.loss.items()
            assert 90 * run.loss["warmup"] == pytest.approx(10, abs=1e-3)
        if method == "smoothadv_consistency":
            assert (run.loss["lbd"], run.loss["eta"]) == (1.0, 0.5)
        if method == "macer":
            assert (run.loss["beta"], run.loss["gamma"]) == (16, 8)
            assert 90 * run.loss["defer"] == pytest.approx(30, abs=1e-3)
    assert (whole.sample.n0, whole.sample.n, whole.certify.alpha) == (100, 100_000, 0.001)
