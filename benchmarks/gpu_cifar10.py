"""CIFAR-10 on a GPU that is at hand for a quarter of an hour: ``make gpu-cifar10``.

``python -m benchmarks.gpu_cifar10 --out FOLDER PART…`` needs PyTorch and a checkout with CIFAR-10
in ``shards/`` (`rrcm preset cifar10-all`, `rrcm repro shard`); DVC may be missing. It measures the
rates of one, four and seven processes, and trains as many at once as were fastest, or
``--at-once``: the stages of each part of `PARTS`, in this order. Where it is installed, NVIDIA's
service lets them share the GPU. Last is `benchmarks.gpu.sampling`.

What a stage of a kind in ``back`` made is in FOLDER/PART-*.tar as soon as it ends, so that a cut at
any moment leaves whole rows. At home, choose the part's preset, unpack its archives into a folder,
and `rrcm adopt` that. What was stopped goes on where ``--out`` is kept.

``--device cpu --scale 0.001`` rehearses all of it.
"""

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import torch
from ruamel.yaml import YAML

from benchmarks import finetune, gpu
from pipeline.project import variants
from pipeline.project.variants import Node
from pipeline.runtime import graph, without_dvc
from rrcm.config.params import Params
from rrcm.config.sections import NONE, Model
from rrcm.core.files import atomic, write_text
from rrcm.core.schema import cast, read_yaml
from rrcm.training import pretrain

ROOT = Path(__file__).parents[1]
PRESETS = ROOT / "presets"
MADE_BY = {"pretrained": "pretrain", "models": "train", "denoisers": "denoise"}
READ = {  # kind of stage -> its section of params.yaml, and the keys that name what it starts from
    "pretrain": ("pretrain", ()),
    "train": ("runs", ("start",)),
    "denoise": ("denoisers", ("start", "guide")),
    "represent": ("representations", ("encoder",)),
}
PROCESSES = (1, 4, 7)
SMALL = 8  # images of a batch in a rehearsal, where 10 % of the labels are those of 10
WARM, MEASURED = 10, 100  # steps before a rate is measured, and in it
SAMPLING = 45.0  # seconds that the last part takes, on a GPU
PACK = 15 * 2**20  # bytes of an archive that comes back
PR_SET_PDEATHSIG = 1  # Linux: what runs is stopped, and saves, when this process is killed
STOPPING = 20.0  # seconds that a stopped training has to save its state


class Part(NamedTuple):
    """Stages of a preset, or of an ablation of it, and what of them comes back."""

    preset: str
    stages: tuple[str, ...]  # patterns, in the order of their value
    back: tuple[str, ...] = ("pretrain", "train", "denoise")  # kinds of stages
    ablation: str = ""

    def params(self) -> Node:
        """Its params.yaml."""
        whole = read_yaml(PRESETS / f"{self.preset}.yaml")
        if not self.ablation:
            return whole
        path = PRESETS / "ablations" / f"{self.ablation}.yaml"
        return variants.compose(whole, variants.read(path)[self.preset], where=str(path))


PARTS = {
    "trend": Part(
        "cifar10-pretraining",
        tuple(f"train@resnet9-{which}-*" for which in ("e78", "e5", "scratch", "e20")),
    ),
    "breadth": Part(
        "cifar10-all",
        tuple(
            f"train@resnet9-{row}"
            for row in (
                "macer-s025",
                "smoothadv-s025",
                "smoothmix-s025",
                "moco_noise-s025",
                "stability-s025",
                "smoothadv-s050",
                "smoothmix-s050",
            )
        ),
    ),
    "denoised": Part("cifar10-denoised", ("denoise@unet", "train@resnet9-*", "denoise@dncnn-s025")),
    "search": Part("cifar10-cpu", ("represent@*",), ("represent",), "pretraining"),
}


def scaled(whole: Node, scale: float) -> Node:
    """The preset with ``scale`` of its gradient evaluations, in batches of `SMALL`; 1: as it is."""
    if scale < 1:
        for cfg in (*whole["pretrain"].values(), *whole["denoisers"].values()):
            steps = round(scale * cfg["steps"] * cfg["batch_size"] / SMALL)
            cfg |= {"steps": max(1, steps), "batch_size": SMALL}
        for recipe in whole["recipes"].values():
            recipe |= {"labels": scale * recipe["labels"], "batch_size": SMALL}
    return whole


def rate(scale: float, device: str) -> float:
    """Images per second of the preset's pre-training in this process, on random pixels.

    Begins when standard input has a line, as other processes are to be measured at once.
    """
    whole = cast(scaled(PARTS["breadth"].params(), scale), Params, where="cifar10-all")
    measured = MEASURED if scale == 1 else 1
    cfg = replace(whole.pretrain["resnet9"], steps=WARM + measured)
    model = Model(architecture=cfg.architecture, shape=whole.models[cfg.model])
    state = pretrain.start(cfg, model, device=device)
    running = iter(pretrain.pretrain(state, finetune.images(model), cfg))
    finetune.seconds_a_step(running, WARM)
    print("ready", flush=True)
    input()
    return cfg.batch_size / finetune.seconds_a_step(running, measured)


def rates(asked: Namespace) -> dict[int, float]:
    """Images per second of so many processes at once, all together; not of as many as fail."""
    command = [sys.executable, "-m", "benchmarks.gpu_cifar10", "--rate", "--device", asked.device]
    command += ["--scale", f"{asked.scale}"]
    found = {}
    for count in PROCESSES:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started = [subprocess.Popen(command, cwd=ROOT, **pipes) for _ in range(count)]
        for one in started:
            one.stdout.readline()
        for one in started:
            with suppress(BrokenPipeError):
                one.stdin.write("\n")
                one.stdin.flush()
        told = [one.communicate()[0] for one in started]
        if all(told):
            found[count] = sum(map(float, told))
    return found


@dataclass(eq=False)
class Workshop:
    """A checkout of links with the params.yaml of a part, in which stages run without DVC."""

    name: str
    part: Part
    out: Path
    say: Callable[[str], None]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where stages run."""
        return self.out / self.name

    def prepare(self, scale: float) -> None:
        """Link the code and the data, and write params.yaml."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("rrcm", "pipeline", "code", "dvc.yaml", "none", "shards"):
            if not (link := self.folder / name).exists():
                link.symlink_to(ROOT / name)
        if not (path := self.folder / "params.yaml").exists():
            with atomic(path) as part:
                YAML().dump(scaled(self.part.params(), scale), part)

    def stages(self) -> dict[str, list[str]]:
        """What the part asks for, in order, each after what it is made of, which is beside it."""
        whole, found = read_yaml(self.folder / "params.yaml"), dict[str, list[str]]()

        def add(name: str) -> None:
            kind, _, key = name.partition("@")
            section, keys = READ[kind]
            starts = [whole[section][key][each] for each in keys]
            paths = [Path(start).parts for start in starts if start != NONE]
            needed = [f"{MADE_BY[folder]}@{key}" for folder, key in paths]
            for each in needed:
                add(each)
            found[name] = needed

        known = [f"{kind}@{key}" for kind, (section, _) in READ.items() for key in whole[section]]
        for pattern in self.part.stages:
            for name in known:
                if fnmatchcase(name, pattern):
                    add(name)
        return found

    def record(self, name: str) -> Path:
        """The file that a stage writes last."""
        return self.folder / without_dvc.RECORDS / f"{name}.lock"

    def start(self, name: str) -> None:
        """Start a stage; it resumes from what it saved before."""
        self.say(f"{name}: starts")
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", f"pipeline.stages.{name.partition('@')[0]}"],
                cwd=self.folder,
                env=os.environ | {graph.STARTED: name, "PYTHONPATH": "."},
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
            )

    def reap(self) -> None:
        """Pack what stages that ended have made, or say why they made nothing."""
        for name, process in [*self.running.items()]:
            if process.poll() is not None:
                del self.running[name]
                if process.returncode == 0:
                    self.pack(name)
                else:
                    text = (self.folder / f"{name}.log").read_text(errors="replace")
                    tail = " | ".join(text.splitlines()[-3:])
                    self.say(f"{name}: failed ({process.returncode}): {tail}")

    def pack(self, name: str) -> None:
        """Add the outputs of a finished stage to an archive that has room, once."""
        if name.partition("@")[0] not in self.part.back:
            self.say(f"{name}: finished")
            return
        record = self.record(name)
        outputs = [out["path"] for out in read_yaml(record)["stages"][name]["outs"]]
        paths = [*outputs, str(record.relative_to(self.folder)), "params.yaml"]
        size = sum((self.folder / path).stat().st_size for path in paths)
        packs = sorted(self.out.glob(f"{self.name}-*.tar"))
        if any(outputs[0] in names(pack) for pack in packs):
            return
        room = [pack for pack in packs if pack.stat().st_size + size <= PACK]
        pack = room[0] if room else self.out / f"{self.name}-{len(packs) + 1:02}.tar"
        with atomic(pack) as part:
            if room:
                shutil.copyfile(pack, part)
            with tarfile.open(part, "a") as archive:
                for path in paths:
                    archive.add(self.folder / path, path)
        self.say(f"{name}: finished, in {pack.name}")

    def stop(self) -> None:
        """Stop what runs; it saves its state first."""
        for name, process in self.running.items():
            self.say(f"{name}: stopped, and goes on from {self.folder}/.rrcm/resume")
            process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOPPING)
            process.kill()
        self.running.clear()


def names(pack: Path) -> list[str]:
    """The paths in an archive."""
    with tarfile.open(pack) as archive:
        return archive.getnames()


def run(workshops: list[Workshop], *, at_once: int, until: float) -> None:
    """Run stages of all parts, each after those that it needs, until the clock says ``until``."""
    waiting = dict[tuple[Workshop, str], list[str]]()
    for shop in workshops:
        for name, needed in shop.stages().items():
            if shop.record(name).exists():
                shop.pack(name)  # unless it is: a kill may have come before
            else:
                waiting[shop, name] = needed
    while time.monotonic() < until:
        for shop in workshops:
            shop.reap()
        running = sum(len(shop.running) for shop in workshops)
        ready = [
            (shop, name)
            for (shop, name), needed in waiting.items()
            if all(shop.record(each).exists() for each in needed)
        ]
        for shop, name in ready[: max(0, at_once - running)]:
            del waiting[shop, name]
            shop.start(name)
        if not (ready or running):
            break  # all have ended, or what they need has failed
        time.sleep(0.2)


@contextmanager
def shared(folder: Path, device: str) -> Iterator[bool]:
    """Whether processes share the GPU at the same time: by NVIDIA's service for it, if it is here.

    Without it they take turns. It is started for the processes of this one, and stopped.
    """
    service = shutil.which("nvidia-cuda-mps-control") if device == "cuda" else None
    if service is None:
        yield False
        return
    folder.mkdir(parents=True, exist_ok=True)
    found = {f"CUDA_MPS_{kind}_DIRECTORY": f"{folder}" for kind in ("PIPE", "LOG")}
    os.environ |= found
    subprocess.run([service, "-d"], check=True)
    try:
        yield True
    finally:
        subprocess.run([service], input=b"quit\n", check=False)
        for name in found:
            del os.environ[name]


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("part", nargs="*", help=f"{', '.join(PARTS)}; default: all, in this order")
    options.add_argument("--out", type=Path, default=Path(".rrcm/gpu-cifar10"))
    options.add_argument("--minutes", type=float, default=12.0)
    options.add_argument("--at-once", type=int, help="trainings; default: as many as are fastest")
    options.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options.add_argument("--scale", type=float, default=1.0, help="a rehearsal: share of the work")
    options.add_argument("--rate", action="store_true", help=argparse.SUPPRESS)  # see `rates`
    asked = options.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        sys.exit("no GPU: PyTorch finds no CUDA device here; --device cpu --scale 0.001 rehearses")
    if asked.rate:
        print(rate(asked.scale, asked.device))
        return
    if unknown := [name for name in asked.part if name not in PARTS]:
        sys.exit(f"{unknown[0]}: is no part; there are {', '.join(PARTS)}")
    asked.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    def say(line: str) -> None:
        told = f"{(time.monotonic() - began) / 60:5.1f} min  {line}"
        print(told, flush=True)
        with (asked.out / "log.txt").open("a") as log:
            log.write(f"{told}\n")

    end = began + 60 * asked.minutes - STOPPING
    workshops = [
        Workshop(name, PARTS[name], asked.out.absolute(), say) for name in asked.part or PARTS
    ]
    for shop in workshops:
        shop.prepare(asked.scale)
    with shared(asked.out.absolute() / "mps", asked.device) as together:
        say(f"processes {'share the device' if together else 'take turns on the device'}")
        if not (at_once := asked.at_once):
            found = rates(asked)
            say(f"images a second by processes: { {k: round(v) for k, v in found.items()} }")
            at_once = max(found, key=found.__getitem__)
        try:
            run(workshops, at_once=at_once, until=end)
        finally:
            for shop in workshops:
                shop.stop()
    if (left := end - time.monotonic()) > (SAMPLING if asked.scale == 1 else 0):
        say(f"sampling beside the usual loop, {left / 60:.1f} minutes left")
        small = Namespace(device=asked.device, small=asked.scale < 1)
        write_text(asked.out / "sampling.md", gpu.sampling(small))
    say("done")


if __name__ == "__main__":
    main()
