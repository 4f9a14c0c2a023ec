"""Steps of pre-training per second: this project's, and the reference implementation's.

``python -m benchmarks.training --size b --image-size 32 --batch 16`` trains two networks with the
same weights on the same batches, views, noise and loss, in turns. Ours is `rrcm.training.pretrain`
as the stage runs it. The other is written from a description of the reference step: a separate
encoder pass for each point, the cleaner one with a graph that is then dropped; the projector after
every pass; the norm of every gradient fetched separately; an unfused optimizer; a loop over
parameters for each of two averages; the noise levels recomputed at each step; float32, or on a GPU
float16 with a scaler. Both use PyTorch's fused attention, which the description does not mention.
On a shared CPU, compare CPU seconds.
"""

import argparse
import copy
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.engine import PATCHES, machine_peak, vit_operations
from rrcm.config.sections import Compute, Grid, Model, Momentum, Optimizer, Pretrain
from rrcm.data.splits.shards import Split
from rrcm.models.networks import vit
from rrcm.noise import units
from rrcm.training import pretrain
from rrcm.training.engine.draws import Draws
from rrcm.training.engine.inputs import loading
from rrcm.training.objectives import rrcm
from rrcm.training.shared.losses import info_nce

CHANNELS = 3
LOSS = rrcm.Config(
    tau_contrast=0.2, tau_consistency=0.2, consistency=1.0, symmetric=True, align=[], ema=0.0
)
ONE_WAY = dataclasses.replace(LOSS, symmetric=False)
CLIP = 2.0
MOMENTUM = 0.99
PASSES = {  # symmetric -> forward passes per image; a backward pass counts as two
    True: 3 * 3 + 1 + 2,  # online, cleaner, target
    False: 3 * 2 + 1 + 1,
}


def settings(
    batch: int, steps: int, *, precision: str, compiled: bool, loss: rrcm.Config = LOSS
) -> Pretrain:
    """The timed pre-training, with the paper's constants where time could depend on them."""
    rate = {"lr": 1e-4, "warmup": 0.1, "warmup_by": "step", "milestones": [], "gamma": 0.1}
    optimizer = {"algorithm": "adamw", "momentum": 0.9, "weight_decay": 0.01, **rate}
    grid = {"t_min": 0.002, "t_max": 80.0, "rho": 7.0, "first": 20, "last": 80, "rule": "ict"}
    compute = {"devices": 1, "accumulate": 1, "recompute": False, "workers": 0}
    return Pretrain(
        architecture="vit",
        model="bench",
        objective="rrcm",
        seed=0,
        steps=steps,
        batch_size=batch,
        freeze_patches=False,
        optimizer=Optimizer(**optimizer, horizon=1.0, clip=CLIP, clip_warmup=True),
        grid=Grid(**grid, sampling="uniform", mean=-1.1, std=2.0),
        target=Momentum(start=MOMENTUM, end=0.9999, steepness=10.0),
        loss=dataclasses.asdict(loss),
        augment={view: [{"flip": {"p": 0.5}}] for view in rrcm.VIEWS},
        compute=Compute(**compute, precision=precision, compile=compiled),
    )


def shape(size: str, image_size: int) -> Model:
    """The network, with the projector that gives the paper's parameter counts."""
    of_image = {"image_size": image_size, "channels": CHANNELS, "patch_size": PATCHES[image_size]}
    start = {"position_std": 0.02, "init": "pytorch"}
    projector = {"projector_width": 2048, "projector_dim": 256}
    return Model(architecture="vit", shape={"size": size} | of_image | start | projector)


def images(batch: int, image_size: int) -> Split:
    """Four batches of random pixels."""
    count, rng = 4 * batch, np.random.default_rng(0)
    pixels = rng.integers(0, 256, (count, CHANNELS, image_size, image_size), dtype=np.uint8)
    zero = np.zeros(count, dtype=np.int64)
    return Split(idx=np.arange(count), images=pixels, labels=zero, classes=("?",), max_value=255)


def plain_encoder(encoder: vit.Encoder, x: Tensor, sigma: Tensor) -> Tensor:
    """The encoder's output [B, D], computing all tokens up to the last layer."""
    t = units.to_time(sigma).expand(len(x))
    c_in = torch.rsqrt(t**2 + vit.SIGMA_DATA**2)
    patches = encoder.patch_embed(units.to_model_space(x) * c_in.view(-1, 1, 1, 1))
    time_token = vit.time_embedding(t, patches.shape[-1])[:, None].to(patches.dtype)
    cls = encoder.cls_token.expand(len(x), -1, -1)
    tokens = torch.cat([cls, time_token, patches], dim=1) + encoder.pos_embed
    for block in encoder.blocks:
        tokens = block(tokens)
    return encoder.norm(tokens)[:, 0]


def reference_loss(
    online: nn.ModuleDict,
    target: nn.ModuleDict,
    views: dict[str, Tensor],
    *,
    sigmas: Tensor,
    draw: Draws,
    cfg: rrcm.Config,
) -> Tensor:
    """The loss [B] of the reference step; the directions of the symmetric one are averaged here.

    The online network sees both views in either case, though one direction needs one.
    """

    def both(network: nn.ModuleDict, x: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        f = plain_encoder(network["encoder"], x + sigma * z, sigma)
        return f, network["projector"](f)

    n = draw.integer(len(sigmas) - 1)
    z = draw.normal(views["plain"])
    _, p1 = both(online, views["first"], sigmas[-1])
    _, p2 = both(online, views["second"], sigmas[-1])
    f_n, _ = both(online, views["plain"], sigmas[n])
    f_next, _ = both(online, views["plain"], sigmas[n + 1])
    with torch.no_grad():
        _, q2 = both(target, views["second"], sigmas[-1])
    contrast = info_nce(p1, q2, tau=cfg.tau_contrast)
    if cfg.symmetric:
        with torch.no_grad():
            _, q1 = both(target, views["first"], sigmas[-1])
        contrast = (contrast + info_nce(p2, q1, tau=cfg.tau_contrast)) / 2
    consistency = info_nce(f_n, f_next.detach(), tau=cfg.tau_consistency)
    return contrast + cfg.consistency * consistency


def reference(start: nn.ModuleDict, split: Split, cfg: Pretrain, device: str) -> Iterator[float]:
    """Train a copy of ``start`` by the reference step; yield the loss of each step."""
    online = copy.deepcopy(start).to(device).train()
    target = copy.deepcopy(online).requires_grad_(False)
    second = copy.deepcopy(online).requires_grad_(False)
    optimizer = torch.optim.AdamW(online.parameters(), lr=cfg.optimizer.lr, weight_decay=0.01)
    constants = rrcm.Config(**cfg.loss)
    half = device == "cuda"
    scaler = torch.amp.GradScaler(device, init_scale=2.0**14, growth_interval=1, enabled=half)
    stream = loading.batches(
        split,
        cfg.augment,
        batch_size=cfg.batch_size,
        seed=cfg.seed,
        start=0,
        stop=cfg.steps,
        device=device,
        workers=0,
        where="benchmark",
    )
    for batch in stream:
        levels, _ = pretrain.noise_levels(batch.step, cfg.grid, steps=cfg.steps)
        sigmas = units.to_sigma(levels).float().to(device)
        with torch.autocast(device, torch.float16, enabled=half):
            draw = Draws(cfg.seed, batch.step)
            loss = reference_loss(
                online, target, batch.views, sigmas=sigmas, draw=draw, cfg=constants
            ).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        math.sqrt(sum(p.grad.norm().item() ** 2 for p in online.parameters() if p.grad is not None))
        nn.utils.clip_grad_norm_(online.parameters(), CLIP)
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for average in (target, second):
                for p, q in zip(average.parameters(), online.parameters(), strict=True):
                    p.mul_(MOMENTUM).add_(q, alpha=1 - MOMENTUM)
        yield loss.item()


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds per step in every turn, of wall-clock and of CPU time."""
    device, batch = arguments.device, arguments.batch
    turns = arguments.repeats * arguments.steps + arguments.warm
    loss = ONE_WAY if arguments.one_way else LOSS
    cfg = settings(
        batch, turns, precision=arguments.precision, compiled=arguments.compile, loss=loss
    )
    model, split = shape(arguments.size, arguments.image_size), images(batch, arguments.image_size)
    state = pretrain.start(cfg, model, device=device)
    running = {
        "reference": reference(state.modules["online"], split, cfg, device),
        "ours": pretrain.pretrain(state, split, cfg),
    }
    for each in running.values():
        _seconds(each, arguments.warm, device)
    wall: dict[str, list[float]] = {name: [] for name in running}
    cpu: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(arguments.repeats):
        for name, each in running.items():
            for found, seconds in zip(
                (wall, cpu), _seconds(each, arguments.steps, device), strict=True
            ):
                found[name].append(seconds / arguments.steps)
    return {
        "wall": wall,
        "cpu": cpu,
        "flops": PASSES[loss.symmetric] * batch * vit_operations(model.shape),
        "peak": machine_peak(arguments.precision, device),
    }


def _seconds(steps: Iterator[object], count: int, device: str) -> tuple[float, float]:
    """Wall-clock seconds of ``count`` steps, and CPU seconds of all threads of this process."""
    sync: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
    sync()
    began = time.perf_counter(), time.process_time()
    for _ in range(count):
        next(steps)
    sync()
    return time.perf_counter() - began[0], time.process_time() - began[1]


def table(result: dict[str, Any], *, batch: int) -> str:
    """The result as a Markdown table."""
    lines = [
        "| step | images/s | s, lowest | median | highest | CPU s | of peak |",
        "| --- |" + " ---: |" * 6,
    ]
    wall, cpu = (
        {name: statistics.median(found) for name, found in result[clock].items()}
        for clock in ("wall", "cpu")
    )
    for name, found in result["wall"].items():
        lines.append(
            f"| {name} | {batch / wall[name]:.2f} | {min(found):.3f} | {wall[name]:.3f} | "
            f"{max(found):.3f} | {cpu[name]:.3f} | "
            f"{100 * result['flops'] / wall[name] / result['peak']:.1f} % |"
        )
    ratio, of_cpu = (each["reference"] / each["ours"] for each in (wall, cpu))
    lines.append(f"\nours: {ratio:.2f} times the reference step; {of_cpu:.2f} times by CPU seconds")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", default="b")
    parser.add_argument("--image-size", type=int, default=32, choices=[*PATCHES])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"], help="of ours")
    parser.add_argument("--compile", action="store_true", help="compile ours")
    parser.add_argument("--one-way", action="store_true", help="one direction of contrast")
    parser.add_argument("--steps", type=int, default=1, help="of a turn")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each")
    parser.add_argument("--warm", type=int, default=1, help="steps before, not timed")
    arguments = parser.parse_args()
    result = measure(arguments)
    machine = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    print(
        f"{arguments.size}, {arguments.image_size} x {arguments.image_size}, batch "
        f"{arguments.batch}, {machine}, {torch.get_num_threads()} threads, torch "
        f"{torch.__version__}; contrast {'one way' if arguments.one_way else 'both ways'}; "
        f"{arguments.repeats} turns of {arguments.steps}; matrix products "
        f"{result['peak'] / 1e9:,.0f} GFLOP/s ({arguments.precision})\n"
    )
    print(table(result, batch=arguments.batch))


if __name__ == "__main__":
    main()
