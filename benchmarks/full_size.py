"""Runs all steps from a network to certificates at the paper's sizes, on a CPU.

``python -m benchmarks.full_size b:32 b_deep:32 b:224`` builds each network with random weights,
saves it, loads it, exports it with a check of parity, and certifies a few images, each step in a
process of its own. It prints seconds, the largest resident set, and the size of the files written.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rrcm.certification import certify
from rrcm.certification.sampling import procedure
from rrcm.certification.votes import records
from rrcm.config.certification import Export
from rrcm.config.defaults import DRAWS
from rrcm.config.sections import Model
from rrcm.core import registry
from rrcm.core.files import sha256
from rrcm.data.splits.shards import Split
from rrcm.inference.export import export
from rrcm.models.trained.base import classifier

CASES = ("b:32", "b_deep:32", "b:224")
STEPS = ("nothing", "save", "load", "export", "certify")
PATCHES = {32: 4, 224: 16}  # image size -> patch size
SIGMA, IMAGES, WORKERS = 0.5, 2, 2
PARITY = Export(opset=20, parity_images=4, tolerance=1e-3)
SAMPLE = replace(DRAWS, batch_size=10, n0=10, n=100, stop="none")


def main(cases: list[str]) -> None:
    print(f"{'network':>12} {'step':>8} {'seconds':>8} {'peak MiB':>9} {'file MB':>8}")
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            for step in STEPS:
                command = [sys.executable, "-m", "benchmarks.full_size", case, step, folder]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found = json.loads(done.stdout)
                size = f"{found['bytes'] / 1e6:,.1f}" if found["bytes"] else ""
                print(
                    f"{case:>12} {step:>8} {found['seconds']:>8.1f} {found['peak']:>9,.0f} "
                    f"{size:>8} {found['said']}",
                    flush=True,
                )


def run(case: str, step: str, root: Path) -> dict[str, Any]:
    """Run one step, using the files that earlier steps left in ``root``."""
    name, _, side = case.partition(":")
    began, written, said = time.perf_counter(), None, ""
    model = Model(architecture="vit", shape=shape(name, int(side)))
    split = images(int(side), classes=10 if side == "32" else 1000)
    weights, onnx = root / "models/run/model.safetensors", root / "onnx/run.onnx"
    if step == "save":
        save(weights.parent, model, split)
        written = weights
    elif step == "load":
        network, _ = classifier.load(weights.parent)
        said = f"{sum(p.numel() for p in network.parameters()):,} parameters"
    elif step == "export":
        network, config = classifier.load(weights.parent)
        metadata = {k: config[k] for k in ("classes", "condition")}
        metadata |= {"sigma": SIGMA, "run": "run", "weights": sha256(weights)}
        record = export(network, onnx, split, metadata, PARITY, architecture="vit")
        difference, size = record["max_abs_difference"], record["max_abs_score"]
        written, said = onnx, f"parity {difference:.1e} of scores up to {size:.2g}"
    elif step == "certify":
        said = certified(root, split)
    return {
        "seconds": time.perf_counter() - began,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "bytes": written.stat().st_size if written else 0,
        "said": said,
    }


def shape(size: str, side: int) -> dict[str, Any]:
    """The network of the presets."""
    return {
        "size": size,
        "image_size": side,
        "channels": 3,
        "patch_size": PATCHES[side],
        "position_std": 0.02,
        "init": "xavier" if side == 224 else "pytorch",
        "projector_width": 2048,
        "projector_dim": 256,
    }


def images(side: int, *, classes: int) -> Split:
    """A few images of noise."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (PARITY.parity_images, 3, side, side), dtype=np.uint8)
    return Split(
        idx=np.arange(len(pixels)),
        images=pixels,
        labels=np.zeros(len(pixels), dtype=np.int64),
        classes=tuple(map(str, range(classes))),
        max_value=255,
    )


def save(folder: Path, model: Model, split: Split) -> None:
    """Write an untrained classifier whose scores differ."""
    torch.manual_seed(0)
    norm = model.shape["image_size"] == 224  # the paper's CIFAR-10 classifiers have no last norm
    classes = len(split.classes)
    network = classifier.build(model, classes=classes, condition="exact", final_norm=norm)
    torch.nn.init.normal_(network.head.weight, std=network.head.in_features**-0.5)
    config = {"classes": list(split.classes), "condition": "exact", "final_norm": norm}
    classifier.save(folder, network.state_dict(), model=model, config=config)


def certified(root: Path, split: Split) -> str:
    """Certify the first images with the exported file; return the result as text."""
    few = Split(
        idx=split.idx[:IMAGES],
        images=split.images[:IMAGES],
        labels=split.labels[:IMAGES],
        classes=split.classes,
        max_value=split.max_value,
    )
    backend = registry.load("backends", SAMPLE.backend).Backend(
        root, "run", sigma=SIGMA, precision=SAMPLE.precision, device="cpu", calibration=None
    )
    header = procedure.header(backend, few, "run", SAMPLE, {})
    journal, path = root / "journal", root / "votes.jsonl"
    for _ in procedure.sample(backend, few, header, journal, path, workers=WORKERS):
        pass
    header, rows = records.read(path)
    table = certify.certify(header, rows, certificates=["cohen"], alpha=SAMPLE.alpha)
    return ", ".join(f"{r.predict} within {r.radius}" for r in table.itertuples())


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[2] in STEPS:
        case, step, folder = sys.argv[1:]
        print(json.dumps(run(case, step, Path(folder))))
    else:
        main(sys.argv[1:] or [*CASES])
