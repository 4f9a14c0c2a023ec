"""Exports a classifier whose weights exceed the size limit of an ONNX file, on a CPU.

``python -m benchmarks.large_export`` puts ResNet-50 behind the diffusion model of presets/
imagenet-diffusion.yaml, 552,814,086 parameters, both with random weights, as DDS does. It writes
them, exports the whole with a check of parity on two pictures, and opens it, each step in a process
of its own. It prints seconds, the largest resident set, and the size of the files written.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rrcm.config import params
from rrcm.config.certification import Export
from rrcm.config.sections import Model
from rrcm.core import registry
from rrcm.core.files import sha256
from rrcm.data.splits.shards import Split
from rrcm.inference.export import export_purified
from rrcm.models.trained import denoiser, purified
from rrcm.models.trained.base import classifier
from rrcm.models.trained.diffusion_process import Schedule

NAME, PRESET = "r50-dds-s050", Path("presets/imagenet-diffusion.yaml")
STEPS = ("save", "export", "fp32", "fp16")
CHECK = Export(opset=20, parity_images=2, tolerance=1e-3)
RELEASED = {"image_size": 256, "attention": [32, 16, 8], "learned_variance": True}  # beside `unet`


def main(steps: list[str]) -> None:
    print(f"{'step':>8} {'seconds':>8} {'peak MiB':>9} {'written MB':>11}")
    with tempfile.TemporaryDirectory() as folder:
        for step in steps:
            command = [sys.executable, "-m", "benchmarks.large_export", step, folder]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found = json.loads(done.stdout)
            print(
                f"{step:>8} {found['seconds']:>8.1f} {found['peak']:>9,.0f} "
                f"{found['bytes'] / 1e6:>11,.1f} {found['said']}",
                flush=True,
            )


def run(step: str, root: Path) -> dict[str, Any]:
    """Run one step, using the files that earlier steps left in ``root``."""
    began, said = time.perf_counter(), ""
    whole = params.load(PRESET)
    side, cfg = whole.data.size, whole.purified[NAME]
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (CHECK.parity_images, 3, side, side), dtype=np.uint8)
    folder, written = root / "models" / NAME, root / "onnx" / f"{NAME}.onnx"
    if step == "save":
        said = save(root, whole, torch.from_numpy(pixels) / 255)
        purified.save(folder, cfg, root=root, pictures=pixels.shape[1:], code=[])
        written = folder
    elif step == "export":
        folded, made = purified.load(folder)
        keys = ("classes", "sigma", "purified", "names")
        metadata = {"run": NAME, **{key: made[key] for key in keys}}
        split = Split(
            idx=np.arange(len(pixels)),
            images=pixels,
            labels=np.zeros(len(pixels), dtype=np.int64),
            classes=tuple(made["classes"]),
            max_value=255,
        )
        record = export_purified(
            purified.rebuild(made, folder, trained=True),
            folded,
            written,
            split,
            metadata | {"weights": sha256(folder / "model.safetensors")},
            CHECK,
        )
        difference, size = record["max_abs_difference"], record["max_abs_score"]
        said = f"parity {difference:.1e} of scores up to {size:.2g}"
    else:
        registry.load("backends", "onnx").Backend(
            root, NAME, sigma=cfg.sigma, precision=step, device="cpu", calibration=None
        )
    return {
        "seconds": time.perf_counter() - began,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "bytes": sum(path.stat().st_size for path in written.iterdir()),
        "said": said,
    }


def save(root: Path, whole: params.Params, pictures: torch.Tensor) -> str:
    """Write both networks untrained, the classifier normalised so that its scores differ."""
    torch.manual_seed(0)
    cfg = whole.purified[NAME]
    shape, run = whole.models["unet"] | RELEASED, whole.runs[cfg.run]
    behind = denoiser.network(cfg.network, shape, where="shape")
    denoiser.save(
        root / cfg.denoiser,
        behind.state_dict(),
        network=cfg.network,
        shape=shape,
        schedule=Schedule(kind="linear", steps=1000, rescale=False),
    )
    model = Model(architecture=run.architecture, shape=whole.models[run.model])
    network = classifier.build(model, classes=1000, condition="exact", final_norm=False)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1.0
    nn.init.normal_(network.head.weight, std=0.1)
    network.train()(pictures, torch.tensor(run.sigma))
    config = {"classes": [str(k) for k in range(1000)], "sigma": run.sigma}
    config |= {"condition": "exact", "final_norm": False}
    classifier.save(root / "models" / cfg.run, network.state_dict(), model=model, config=config)
    return f"{sum(p.numel() for p in behind.parameters()):,} parameters of the denoiser"


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in STEPS:
        print(json.dumps(run(sys.argv[1], Path(sys.argv[2]))))
    else:
        main([*STEPS])
