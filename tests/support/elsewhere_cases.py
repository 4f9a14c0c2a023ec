"""Work on the device of `elsewhere` beside the same on the CPU: ``python elsewhere_cases.py``.

Prints a JSON object: case -> what went wrong, empty if its results have the bits of the CPU's, or
in bfloat16 their types.
"""

import dataclasses
import json
import tempfile
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import diffusers.schedulers.scheduling_dpmsolver_multistep  # noqa: F401 (before torch is changed)
import numpy as np
import torch
import unlabelled
from ballot_counters import counting, pieces
from builders import SIGMA, images
from helpers import DENOISING, GENERATION, MINI, PRETRAIN, REPRESENTATION, constants, split
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from rrcm.certification.sampling.voting import BoundNoise
from rrcm.config.certification import Local
from rrcm.config.sections import Model
from rrcm.core import registry
from rrcm.core.schema import parse
from rrcm.data.splits.shards import Split
from rrcm.diffusion import condition, sampling
from rrcm.diffusion import training as denoising
from rrcm.evaluation import probe
from rrcm.inference.backend import Backend
from rrcm.models.trained import denoiser
from rrcm.models.trained.base import checkpoint, classifier
from rrcm.models.trained.denoiser import Denoiser, Schedule, Times
from rrcm.models.trained.purified import Precise, PurifiedClassifier, Resize
from rrcm.training import finetune
from rrcm.training import pretrain as pretraining
from rrcm.training.engine.loop import State

CLASSES = 4
DATA = {"train": split(32, seed=0), "validation": split(12, seed=1)}
LARGE = {  # of 16 x 16 pixels, for networks that 8 x 8 is too small for
    name: dataclasses.replace(one, images=np.kron(one.images, np.ones((1, 1, 2, 2), np.uint8)))
    for name, one in DATA.items()
}
PROJECTOR = {"projector_width": 16, "projector_dim": 8}
MODEL = Model(architecture="vit", shape=MINI.models["tiny"] | {"size": "16x2x2"})
SHAPES: dict[str, dict[str, Any]] = {
    "vit": MODEL.shape,
    "lenet": {"image_size": 16, "channels": 1, **PROJECTOR},
    "resnet9": {"stem": 2, "image_size": 16, "channels": 1, **PROJECTOR},
    "resnet": {"size": "8", "image_size": 16, "channels": 1, "mean": [0.5], "std": [0.5]}
    | PROJECTOR,
}
DENOISERS = {
    "dncnn": {"image_size": 8, "channels": 1, "depth": 3, "width": 8, "momentum": 0.1},
    "uvit": {"size": "16x1x2", "image_size": 8, "channels": 1, "patch_size": 4}
    | {"position_std": 0.5, "time_scale": 1000.0},
}
EDM = {"kind": "edm", "steps": 0, "rescale": False}
LINEAR = {"kind": "linear", "steps": 1000, "rescale": False}
PURIFIERS: dict[str, dict[str, Any]] = {
    "learned": {},
    "one_shot": {"rule": "first"},
    "multi_step": {"rule": "exact", "steps": 3, "variance": "small"},
}
LOSSES: dict[str, dict[str, Any]] = {
    **{name: {"sigma": SIGMA} for name in ("mse", "stability")},
    "diffusion": {"schedule": EDM, "mean": -1.2, "std": 1.2},
}
Make = Callable[[str], Iterable[Tensor]]  # device -> what comes out


def pretrain(objective: str, precision: str = "fp32") -> Make:
    """A step of a pre-training: weights, EMA and moments."""
    module = registry.load("objectives", objective)
    augment = {view: [{"gain": {"amount": 0.1}}] for view in module.VIEWS}
    loss = PRETRAIN.loss if objective == PRETRAIN.objective else unlabelled.valid(module)
    cfg = dataclasses.replace(
        PRETRAIN,
        objective=objective,
        loss=loss,
        augment=augment,
        steps=1,
        batch_size=8,
        compute=dataclasses.replace(PRETRAIN.compute, precision=precision),
    )
    model = dataclasses.replace(MODEL, shape=MODEL.shape | {"patch_size": 2})

    def make(device: str) -> Iterable[Tensor]:
        state = pretraining.start(cfg, model, device=device)
        return result(state, pretraining.pretrain(state, DATA["train"], cfg))

    return make


def train(method: str, network: str = "vit", precision: str = "fp32") -> Make:
    """A step of a training by a method, validation included."""
    module = registry.load("methods", method)
    run = dataclasses.replace(
        MINI.runs["tiny-gaussian-s050"],
        method=method,
        architecture=network,
        loss=constants(module),
    )
    scratch = MINI.recipes["scratch"]
    recipe = dataclasses.replace(
        scratch,
        compute=dataclasses.replace(scratch.compute, precision=precision),
        epochs=1,
        batch_size=32,
        final_norm=network == "vit",
        augment=[{"gain": {"amount": 0.1}}],
    )
    data = DATA if network == "vit" else LARGE
    model = Model(architecture=network, shape=SHAPES[network])

    def make(device: str) -> Iterable[Tensor]:
        state = finetune.start(run, recipe, model, classes=CLASSES, device=device)
        teacher = (state.modules["classifier"], torch.tensor(0.25, device=device))
        teacher = teacher if hasattr(module, "table") else None
        steps = finetune.train(state, module, data, run, recipe, teacher)
        return [*result(state, steps), *state.best.values()]

    return make


def denoise(objective: str, **loss: Any) -> Make:
    """A step of a denoiser's training by an objective."""
    network = "uvit" if objective == "diffusion" else "dncnn"
    cfg = dataclasses.replace(
        DENOISING, network=network, objective=objective, loss=LOSSES[objective] | loss
    )
    guided = objective == "stability"

    def make(device: str) -> Iterable[Tensor]:
        state = denoising.start(cfg, DENOISERS[network], device=device)
        guide = net("vit", device).fix(SIGMA) if guided else None
        return result(state, denoising.denoise(state, DATA["train"], cfg, guide))

    return make


def result(state: State, steps: Iterable[State]) -> list[Tensor]:
    """Everything that a training changes, after its last step."""
    for _ in steps:
        pass
    weights = [x for module in state.modules.values() for x in module.state_dict().values()]
    moments = [x for one in state.optimizer.state.values() for x in one.values()]
    return [*weights, *(x for x in moments if isinstance(x, Tensor))]


def net(network: str, device: str) -> classifier.Classifier:
    torch.manual_seed(0)
    model = Model(architecture=network, shape=SHAPES[network])
    made = classifier.build(model, classes=CLASSES, condition="exact", final_norm=network == "vit")
    torch.nn.init.normal_(made.head.weight)
    return made.eval().to(device)


def folded(network: str) -> Make:
    """Scores of a network at one sigma, as certification calls it."""
    x = torch.from_numpy((DATA if network == "vit" else LARGE)["train"].pixels(slice(8)))

    def make(device: str) -> Iterable[Tensor]:
        with torch.inference_mode():
            return [net(network, device).fix(SIGMA)(x.to(device))]

    return make


def purified(name: str) -> Make:
    """Scores of a classifier behind a purifier, with votes and noisy copies of what it sees."""
    module = registry.load("purifiers", name)
    cfg = parse(PURIFIERS[name], module.Config, where="purify")
    network = "dncnn" if name == "learned" else "uvit"
    local = Local(copies=2, sigma=0.1, fixed=True, seed=0)
    votes = 2 if cfg.normals else 1
    fields = votes * cfg.normals
    x, z = (torch.rand(5, *shape) for shape in ((1, 8, 8), (fields, 1, 8, 8)))

    def make(device: str) -> Iterable[Tensor]:
        torch.manual_seed(0)
        behind = Precise(denoiser.network(network, DENOISERS[network], where="shape"))
        whole = behind if name == "learned" else Denoiser(behind, Times(Schedule(**LINEAR)))
        both = PurifiedClassifier(
            module.Purifier(whole, cfg),
            net("lenet", "cpu").fix(SIGMA),
            Resize(8, 16),
            votes=votes,
            normals=(fields, 1, 8, 8) if fields else (),
            local=local,
            copies=torch.rand(local.copies, 1, 16, 16),
        )
        fixed = both.fix(SIGMA).to(device)
        with torch.no_grad():
            return [fixed(x.to(device), *([z.to(device)] if fields else []))]

    return make


def noise(name: str) -> Make:
    """A distribution's noisy pixels, and the normal numbers of a random classifier."""
    component, some = registry.load("distributions", name), images(5)

    def make(device: str) -> Iterable[Tensor]:
        x = torch.from_numpy(some.pixels(slice(5))).to(device)
        drawn, draws = (torch.arange(k, 5 + k, device=device) for k in (3, 7))
        bound = BoundNoise(component, SIGMA, 3, some.max_value)
        return [bound.noisy(x, drawn, draws), bound.normals(drawn, draws, (3,))]

    return make


class OneLayer(Backend):
    """A classifier of small images on a device."""

    def __init__(self, some: Split, device: str) -> None:
        torch.manual_seed(0)
        pixels = some.images[0].size
        self.classes = ["0", "1", "2"]
        self.layer, self.device = torch.nn.Linear(pixels, 3).to(device), torch.device(device)

    def scores(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        with torch.inference_mode():
            return self.layer(x.flatten(1))


def votes() -> Make:
    """Votes of pieces."""
    some = images(5)

    def make(device: str) -> Iterable[Tensor]:
        count = counting(OneLayer(some, device), some)
        return map(torch.from_numpy, count(pieces((0, 0, 9), (1, 1, 9), (2, 2, 9))))

    return make


def encoder(device: str) -> torch.nn.Module:
    """A pre-trained encoder, read from its file."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        made = net("vit", "cpu").encoder.state_dict()
        checkpoint.save(Path(name, "encoder.safetensors"), made)
        return probe.load_encoder(Path(name), MODEL, device=device)


def encoded(device: str) -> Iterable[Tensor]:
    """Representations of clean and noisy images, for the linear probe."""
    for draw in (None, 2):
        representations = probe.encode(
            encoder(device), DATA["train"], REPRESENTATION, t=1.0, draw=draw, rows=12
        )
        yield from map(torch.from_numpy, representations)


def told(device: str) -> condition.Condition:
    """What tells a conditional network, in the units of the training images."""
    made = condition.Condition(encoder("cpu"), t_min=0.002, t_max=80.0).to(device)
    return condition.standardise(made.eval().requires_grad_(False), DATA["train"])


def denoise_told(device: str) -> Iterable[Tensor]:
    """A step of a conditional denoiser's training."""
    cfg = dataclasses.replace(
        DENOISING, network="uvit", objective="diffusion", loss=LOSSES["diffusion"]
    )
    state = denoising.start(cfg, DENOISERS["uvit"] | {"condition": 16}, device=device)
    return result(state, denoising.denoise(state, DATA["train"], cfg, told(device)))


def generated(device: str) -> Iterable[Tensor]:
    """Pictures and their conditions."""
    torch.manual_seed(0)
    network = denoiser.network("uvit", DENOISERS["uvit"] | {"condition": 16}, where="shape")
    model = Denoiser(network.eval(), Times(Schedule(**EDM))).to(device)
    for real in (True, False):
        both = sampling.generate(
            model, GENERATION, DATA["train"], told=told(device), real=real, rows=5
        )
        for x, c in both:
            yield from (x, c)


CASES: dict[str, Make] = {
    **{f"pretrain {name}": pretrain(name) for name in registry.names("objectives")},
    **{f"train {name}": train(name) for name in registry.names("methods")},
    **{f"train on {name}": train("gaussian", name) for name in SHAPES if name != "vit"},
    **{f"denoise {name}": denoise(name) for name in registry.names("denoiser_objectives")},
    "denoise by steps": denoise("diffusion", schedule=LINEAR, mean=0.0, std=0.0),
    **{f"fold {name}": folded(name) for name in registry.names("networks")},
    **{f"purify {name}": purified(name) for name in registry.names("purifiers")},
    **{f"noise {name}": noise(name) for name in registry.names("distributions")},
    "denoise told": denoise_told,
    "generate": generated,
    "votes": votes(),
    "encode": encoded,
}
NARROW: dict[str, Make] = {  # under autocast: results have the types of the CPU's, and are finite
    **{f"pretrain {name} in bf16": pretrain(name, "bf16") for name in registry.names("objectives")},
    "train smoothadv in bf16": train("smoothadv", precision="bf16"),
}


def mixed(device: str) -> Iterable[Tensor]:
    """A mistake under autocast: a product is bfloat16, and `lerp` wants one type."""
    x = torch.ones(3, 3, device=device)
    with torch.autocast(device, torch.bfloat16):
        return [torch.lerp(x @ x, x, 0.5)]


MISTAKES: dict[str, Make] = {
    "all on the CPU": lambda device: [torch.ones(3, 3) @ torch.ones(3, 3)],
    "left on the CPU": lambda device: [torch.ones(3, device=device) + torch.ones(3)],
    "no kernel": lambda device: [torch.ones(3, device=device).to_mkldnn()],
    "two types": mixed,
    "another result": lambda device: [torch.ones(3) * (device == "cpu")],
}
FAILING = ("no kernel", "two types")  # on the CPU, too


def types(tensors: Iterable[Tensor]) -> list[tuple[torch.dtype, torch.Size, bool]]:
    """Type, shape, and whether all numbers are finite."""
    return [(x.dtype, x.shape, bool(x.detach().cpu().isfinite().all())) for x in tensors]


def main() -> None:
    import elsewhere  # here, as it changes PyTorch for the whole process

    told = {}
    for name, make in (CASES | NARROW | MISTAKES).items():
        compared = types if name in NARROW else elsewhere.bits
        try:
            wanted = [] if name in FAILING else compared(make("cpu"))
            with elsewhere.Device():
                made = [*make(elsewhere.NAME)]
                same = compared(made) == wanted
            told[name] = "" if same else "other bits or types than on the CPU"
        except Exception as error:
            if name not in MISTAKES:
                traceback.print_exc()
            told[name] = f"{type(error).__name__}: {error}"[:300]
    print(json.dumps(told))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with sdpa_kernel(SDPBackend.MATH):  # a device chooses, and the CPU would take another
        main()
