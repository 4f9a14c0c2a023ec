"""Checks and speeds of a GPU: ``python -m benchmarks.gpu``, some minutes; `make gpu`.

For a machine with a GPU. It says what agrees with the CPU (noise, votes), how fast sampling is
beside the usual loop, and training beside the peak of matrix products, how much memory training
takes, and whether two GPUs draw the votes of one. It writes benchmarks/gpu-<name>.md, also where a
part failed, with the reason: send it in.
``--device cpu --small`` rehearses all of it without a GPU, and writes nothing.
"""

import argparse
import dataclasses
import re
import statistics
import sys
import tempfile
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import numpy as np
import torch

import rrcm
from benchmarks import engine, finetune
from benchmarks.engine import SIGMA, Subject
from pipeline.workflow import git
from rrcm.certification import fastest
from rrcm.certification.sampling import voting
from rrcm.certification.sampling.batching import Job, Piece
from rrcm.certification.sampling.voting import BoundNoise
from rrcm.config.sections import Model, Pretrain
from rrcm.core import registry
from rrcm.inference.backend import Backend
from rrcm.training import pretrain
from rrcm.training.objectives import rrcm as objective

NOISE_DRAWS = 2_000
TURNS = 3  # of pre-training
PASSES = 3 * 3 + 1 + 2  # of an image and a step; a backward pass counts as two
VOTE_DRAWS, VOTE_IMAGES = 4_096, 32
SAMPLED = (("resnet9", 32, 1024), ("b", 32, 1024), ("b", 224, 256))  # network, pixels, batch


@contextmanager
def subject(model: str, image_size: int) -> Iterator[Subject]:
    """An untrained network whose votes go to several classes."""
    with tempfile.TemporaryDirectory() as folder:
        yield engine.prepare(Path(folder), model, image_size)


def noise(asked: Namespace) -> str:
    """Noise: the same bits as on the CPU"""
    lines = ["| distribution | numbers | other bits than on the CPU |", "| --- | ---: | ---: |"]
    images = torch.zeros(NOISE_DRAWS, dtype=torch.int64)
    draws = torch.arange(NOISE_DRAWS)
    x = (torch.randint(256, (1, 3, 32, 32)) / 255).expand(NOISE_DRAWS, -1, -1, -1)
    for name in registry.names("distributions"):
        bound = BoundNoise(registry.load("distributions", name), SIGMA, 0, 255)
        here = bound.noisy(x, images, draws)
        there = bound.noisy(*(one.to(asked.device) for one in (x, images, draws))).cpu()
        other = int((here.view(torch.int32) != there.view(torch.int32)).sum())
        lines.append(f"| {name} | {here.numel():,} | {other:,} |")
    return "\n".join(lines)


def votes(asked: Namespace) -> str:
    """Votes: those of the CPU, up to near ties"""
    lines = ["| backend | precision | draws | other votes than fp32 on the CPU |"]
    lines += ["| --- | --- | ---: | ---: |"]
    with subject("tiny", 8) as made:
        wanted = _votes(made, engine.opened(made, "torch", "fp32", "cpu"))
        backends, missing = engine.ready(made, asked.device)
        for (name, precision), backend in backends.items():
            other = (_votes(made, backend) - wanted).abs().sum() / 2
            lines.append(
                f"| {name} | {precision} | {VOTE_IMAGES * VOTE_DRAWS:,} | {int(other):,} |"
            )
    return "\n".join(lines) + "".join(f"\n\nNot here: {one}." for one in missing)


def _votes(made: Subject, backend: Backend) -> torch.Tensor:
    count = voting.counter(
        backend,
        made.split,
        noise=BoundNoise(registry.load("distributions", "gaussian"), SIGMA, 0, 255),
        batch_size=256,
    )
    pieces = [Piece(Job(row=row, bounds=()), 0, 0, VOTE_DRAWS) for row in range(VOTE_IMAGES)]
    return torch.from_numpy(np.stack(count(pieces)))


def sampling(asked: Namespace) -> str:
    """Sampling: noisy images per second, beside the usual loop"""
    sizes = (("tiny", 8, 16),) if asked.small else SAMPLED
    how = {"repeats": 1, "seconds": 0.2} if asked.small else {"repeats": 3, "seconds": 2.0}
    tables = [engine.measure(*size, batches=[batch], **how) for *size, batch in sizes]
    return "\n\n".join(f"```\n{table}\n```" for table in tables)


def train(asked: Namespace) -> str:
    """Pre-training: images per second, share of the peak, memory"""
    lines = ["| network | batch | images/s, lowest | median | highest | of peak | GiB |"]
    lines += ["| --- |" + " ---: |" * 6]
    peak = engine.machine_peak("bf16", asked.device)
    steps, warm = (1, 1) if asked.small else (5, 5)
    sizes = (("tiny", 8, 16),) if asked.small else (("b", 32, 512), ("b", 224, 64))
    for size, side, batch in sizes:
        if asked.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        changes = {"size": size, "image_size": side, "patch_size": engine.PATCHES[side]}
        shape = finetune.of_preset("cifar10").models["b"] | changes
        model = Model(architecture="vit", shape=shape)
        cfg = pretraining(batch, warm + TURNS * steps)
        state = pretrain.start(cfg, model, device=asked.device)
        few = fastest.random_images((3, side, side))
        rows = np.arange(4 * batch) % len(few.idx)
        split = dataclasses.replace(
            few, idx=np.arange(len(rows)), images=few.images[rows], labels=few.labels[rows]
        )
        running = iter(pretrain.pretrain(state, split, cfg))
        finetune.seconds_a_step(running, warm)
        rates = [batch / finetune.seconds_a_step(running, steps) for _ in range(TURNS)]
        rate = statistics.median(rates)
        share = PASSES * engine.vit_operations(model.shape) * rate / peak
        used = torch.cuda.max_memory_allocated() / 2**30 if asked.device == "cuda" else 0.0
        lines.append(
            f"| {size}, {side} x {side} | {batch} | {min(rates):.1f} | {rate:.1f} | "
            f"{max(rates):.1f} | {100 * share:.1f} % | {used:.1f} |"
        )
    return "\n".join(lines)


def pretraining(batch: int, steps: int) -> Pretrain:
    """The paper's pre-training in bf16, symmetric and hardly augmented: the GPU's work."""
    paper = finetune.of_preset("cifar10").pretrain["b"]
    return dataclasses.replace(
        paper,
        steps=steps,
        batch_size=batch,
        loss=paper.loss | {"symmetric": True},
        augment={view: [{"flip": {"p": 0.5}}] for view in objective.VIEWS},
        compute=dataclasses.replace(paper.compute, devices=1, compile=False),
    )


def several(asked: Namespace) -> str:
    """Two GPUs: the votes of one"""
    count = torch.cuda.device_count() if asked.device == "cuda" else 2
    if count < 2:
        return "There is one GPU: not tried."
    names = [f"cuda:{i}" for i in range(2)] if asked.device == "cuda" else ["cpu", "cpu"]
    with subject("tiny", 8) as made:
        found, seconds = [], []
        for devices in (names[:1], names):
            network = made.network.fix(SIGMA).eval().to(devices[0])
            smoothed = rrcm.smooth(network, sigma=SIGMA, classes=len(made.split.classes))
            began = time.perf_counter()
            images = torch.from_numpy(made.split.pixels(slice(16))).clone()
            answers = smoothed.certify(
                images, n=2_000 if asked.small else 50_000, seed=0, stop="none", devices=devices
            )
            seconds.append(time.perf_counter() - began)
            found.append(answers.to_pandas())
        same = found[0].equals(found[1])
    return (
        f"Answers are {'the same' if same else '**not the same**'}; {names[0]} took "
        f"{seconds[0]:.1f} s, {' and '.join(names)} {seconds[1]:.1f} s."
    )


PARTS: tuple[Callable[[Namespace], str], ...] = (noise, votes, sampling, train, several)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options.add_argument("--small", action="store_true", help="a rehearsal, of a minute")
    asked = options.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        sys.exit(
            "no GPU: PyTorch finds no CUDA device here, so there is nothing to measure; "
            "`rrcm doctor` says what it does find"
        )
    name = torch.cuda.get_device_name() if asked.device == "cuda" else "CPU"
    commit = git.run("rev-parse", "--short", "HEAD")
    about = f"Measured by `make gpu` on {date.today()}, at commit {commit}; torch"
    text = [f"# {name}\n\n{about} {torch.__version__}.\n"]
    failed = False
    for part in PARTS:
        print(f"{(part.__doc__ or '').partition(':')[0]} …", flush=True)
        try:
            found = part(asked)
        except Exception as error:
            traceback.print_exc()
            found, failed = f"**Failed**: `{type(error).__name__}: {error}`", True
        text.append(f"## {part.__doc__}\n\n{found}\n")
    page = "\n".join(text)
    print(page)
    if not asked.small:
        path = Path(__file__).parent / f"gpu-{re.sub('[^a-z0-9]+', '-', name.lower())}.md"
        path.write_text(page)
        print(f"written to {path}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
