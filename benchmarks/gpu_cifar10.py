"""CIFAR-10 on a GPU that is at hand for a quarter of an hour: ``make gpu-cifar10``.

``python -m benchmarks.gpu_cifar10 --out FOLDER`` needs PyTorch and a checkout with ``shards/`` of
CIFAR-10 (`rrcm preset cifar10-all`, `rrcm repro shard`); DVC may be missing. It measures the rates
of one, four and seven processes, chooses from them how many train at once and how long the longest
pre-training is, and writes that to FOLDER/plan.json before the first row is trained. Then it trains
rows of the preset `cifar10-all`, and after them rRCM beside consistency training at equal passes
through the network, two seeds each. Last is `benchmarks.gpu.sampling`.

Rows come in the order of their value. A finished one is in FOLDER/pack-*.tar at once, so that a cut
at any moment leaves whole rows. At home, unpack these into a folder, make its params.yaml that of
the checkout, and `rrcm adopt` it. What was stopped goes on where ``--out`` is kept.

``--device cpu --scale 0.001`` rehearses all of it.
"""

import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from ruamel.yaml import YAML

from benchmarks import finetune, gpu
from pipeline.project.variants import Node, merged
from pipeline.runtime import graph, without_dvc
from rrcm.config.params import Params
from rrcm.config.sections import NONE, Model
from rrcm.core.files import atomic, read_json, write_json, write_text
from rrcm.core.schema import cast, read_yaml
from rrcm.training import pretrain

ROOT = Path(__file__).parents[1]
PRESET = ROOT / "presets/cifar10-all.yaml"
BREADTH = (  # rows of the preset in the order of their value
    "consistency-s025-seed1",
    "consistency-s025-seed2",
    "macer-s025",
    "smoothadv-s025",
    "smoothmix-s025",
    "moco_noise-s025",
    "stability-s025",
)
LENGTHS = (20, 40, 60, 120)  # epochs of the longest pre-training
FINETUNED = 15  # epochs after it
PASSES = {"pretrain": 7, "consistency": 6}  # of an image and epoch; a backward pass counts as two
SHARE = 0.55  # of the time, for the rows with the longest pre-training
PROCESSES = (1, 4, 7)
SMALL = 16  # images of a batch in a rehearsal
WARM, MEASURED = 5, 20  # steps before a rate is measured, and in it
HORIZON = 300_000  # steps of the paper, in whose units the moving average is stated
SAMPLING = 45.0  # seconds that the last part takes, on a GPU
PACK, PACKS = 15 * 2**20, 8  # bytes and number of files that come back
PR_SET_PDEATHSIG = 1  # Linux: what runs is stopped, and saves, when this process is killed
STOPPING = 20.0  # seconds that a stopped training has to save its state


def scaled(whole: Node, scale: float) -> Node:
    """The preset with ``scale`` of its gradient evaluations, in batches of 16; 1: as it is."""
    if scale < 1:
        for cfg in whole["pretrain"].values():
            steps = round(scale * cfg["steps"] * cfg["batch_size"] / SMALL)
            cfg |= {"steps": max(1, steps), "batch_size": SMALL}
        for recipe in whole["recipes"].values():
            recipe |= {"labels": scale, "batch_size": SMALL}
    return whole


def breadth(whole: Node) -> list[str]:
    """Stages of the preset's rows, each after its pre-training."""
    stages = []
    for row in BREADTH:
        run = f"resnet9-{row}"
        folder, _, encoder = whole["runs"][run]["start"].partition("/")
        stages += [f"pretrain@{encoder}"] * (folder == "pretrained") + [f"train@{run}"]
    return stages


def depth(whole: Node, epochs: int, images: int) -> list[str]:
    """Add rRCM after ``epochs`` of pre-training, and consistency training at equal passes.

    Returns:
        The stages, in order.
    """
    stages, longest = [], f"e{epochs}"
    again = FINETUNED + round(epochs * PASSES["pretrain"] / PASSES["consistency"])
    for name, count in (("rrcm", FINETUNED), ("consistency", again)):
        whole["recipes"][f"{name}-{longest}"] = whole["recipes"][name] | {"epochs": count}
    base = whole["pretrain"]["resnet9"]
    steps = max(1, round(epochs * images / base["batch_size"]))
    for seed in (0, 1):
        encoder = f"resnet9-{longest}-seed{seed}"
        changes = {"seed": seed, "steps": steps, "target": {"steps": HORIZON}}
        whole["pretrain"][encoder] = merged(base, changes)
        stages.append(f"pretrain@{encoder}")
        for name, start in (("rrcm", f"pretrained/{encoder}"), ("consistency", NONE)):
            run = f"resnet9-{name}-{longest}-seed{seed}"
            changes = {"seed": seed, "recipe": f"{name}-{longest}", "start": start}
            whole["runs"][run] = whole["runs"][f"resnet9-{name}-s025"] | changes
            whole["evals"][f"{run}-e025"] = {"run": run, "architecture": "resnet9", "sigma": 0.25}
            stages.append(f"train@{run}")
    return stages


def rate(scale: float, device: str) -> float:
    """Images per second of the preset's pre-training in this process, on random pixels.

    Begins when standard input has a line, as other processes are to be measured at once.
    """
    whole = cast(scaled(read_yaml(PRESET), scale), Params, where=str(PRESET))
    cfg = replace(whole.pretrain["resnet9"], steps=WARM + MEASURED)
    model = Model(architecture=cfg.architecture, shape=whole.models[cfg.model])
    state = pretrain.start(cfg, model, device=device)
    running = iter(pretrain.pretrain(state, finetune.images(model), cfg))
    finetune.seconds_a_step(running, WARM)
    print("ready", flush=True)
    input()
    return cfg.batch_size / finetune.seconds_a_step(running, MEASURED)


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


@dataclass
class Workshop:
    """A checkout of links with a params.yaml of its own, in which stages run without DVC."""

    out: Path
    say: Callable[[str], None]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where stages run."""
        return self.out / "work"

    def prepare(self, whole: Node) -> None:
        """Link the code and the data, and write params.yaml."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("rrcm", "pipeline", "code", "dvc.yaml", "none", "shards"):
            if not (link := self.folder / name).exists():
                link.symlink_to(ROOT / name)
        with atomic(self.folder / "params.yaml") as part:
            YAML().dump(whole, part)

    def run(self, stages: list[str], *, at_once: int, until: float) -> None:
        """Run stages, each after those that it needs, until the clock says ``until``."""
        waiting = [name for name in stages if not self.record(name).exists()]
        for name in stages:
            if name not in waiting:
                self.pack(name)  # unless it is: a kill may have come before
        while (waiting or self.running) and time.monotonic() < until:
            for name, process in [*self.running.items()]:
                if process.poll() is not None:
                    del self.running[name]
                    self.ended(name, process.returncode)
            ready = [name for name in waiting if self.ready(name)]
            for name in ready[: max(0, at_once - len(self.running))]:
                waiting.remove(name)
                self.start(name)
            if not (ready or self.running):
                break  # what they need has failed
            time.sleep(0.2)

    def record(self, name: str) -> Path:
        """The file that a stage writes last."""
        return self.folder / without_dvc.RECORDS / f"{name}.lock"

    def ready(self, name: str) -> bool:
        """Whether all that a stage needs is there."""
        made = read_yaml(self.folder / "params.yaml")
        kind, _, key = name.partition("@")
        start = made["runs"][key]["start"] if kind == "train" else NONE
        return start == NONE or self.record(f"pretrain@{Path(start).name}").exists()

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

    def ended(self, name: str, code: int) -> None:
        """Pack what a stage has made, or say why it made nothing."""
        if code == 0:
            self.pack(name)
        else:
            tail = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-3:]
            self.say(f"{name}: failed ({code}): {' | '.join(tail)}")

    def pack(self, name: str) -> None:
        """Add the outputs of a finished stage to an archive that has room, once."""
        record = self.record(name)
        outputs = [out["path"] for out in read_yaml(record)["stages"][name]["outs"]]
        paths = [*outputs, str(record.relative_to(self.folder)), "params.yaml"]
        size = sum((self.folder / path).stat().st_size for path in paths)
        packs = [self.out / f"pack-{number}.tar" for number in range(1, PACKS + 1)]
        for pack in packs:
            if pack.exists() and outputs[0] in tarfile.open(pack).getnames():
                return
        for pack in packs:
            if (pack.stat().st_size if pack.exists() else 0) + size <= PACK:
                with atomic(pack) as part:
                    if pack.exists():
                        shutil.copyfile(pack, part)
                    with tarfile.open(part, "a") as archive:
                        for path in paths:
                            archive.add(self.folder / path, path)
                self.say(f"{name}: finished, in {pack.name}")
                return
        self.say(f"{name}: finished, but no archive has room; it is in {self.folder}/")

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


def choice(found: dict[int, float], images: int, seconds: float) -> tuple[int, int]:
    """How many trainings at once, and how long the longest pre-training is, in epochs."""
    at_once = max(found, key=found.__getitem__)
    passes = found[at_once] * PASSES["pretrain"] * SHARE * seconds  # of the network, in that time

    def needed(epochs: int) -> float:
        each = epochs * PASSES["pretrain"] + FINETUNED * PASSES["consistency"]
        return 2 * 2 * each * images  # two seeds of two rows at equal passes

    fitting = [epochs for epochs in LENGTHS if needed(epochs) <= passes]
    return at_once, max(fitting, default=LENGTHS[0])


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, default=Path(".rrcm/gpu-cifar10"))
    options.add_argument("--minutes", type=float, default=12.0)
    options.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options.add_argument("--scale", type=float, default=1.0, help="a rehearsal: share of the work")
    options.add_argument("--rate", action="store_true", help=argparse.SUPPRESS)  # see `rates`
    asked = options.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        sys.exit("no GPU: PyTorch finds no CUDA device here; --device cpu --scale 0.001 rehearses")
    if asked.rate:
        print(rate(asked.scale, asked.device))
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    def say(line: str) -> None:
        told = f"{(time.monotonic() - began) / 60:5.1f} min  {line}"
        print(told, flush=True)
        with (asked.out / "log.txt").open("a") as log:
            log.write(f"{told}\n")

    end = began + 60 * asked.minutes - STOPPING
    workshop = Workshop(asked.out, say)
    at_once, stages = planned(asked, workshop, end)
    try:
        workshop.run(stages, at_once=at_once, until=end)
    finally:
        workshop.stop()
    if (left := end - time.monotonic()) > SAMPLING or asked.scale < 1:
        say(f"sampling beside the usual loop, {left / 60:.1f} minutes left")
        small = Namespace(device=asked.device, small=asked.scale < 1)
        write_text(asked.out / "sampling.md", gpu.sampling(small))
    say("done")


def planned(asked: Namespace, workshop: Workshop, end: float) -> tuple[int, list[str]]:
    """How many trainings at once, and all stages in order; from plan.json if it is there."""
    kept = asked.out / "plan.json"
    if not kept.exists():
        images = json.loads((ROOT / "shards/train/index.json").read_text())["images"]
        whole = scaled(read_yaml(PRESET), asked.scale)
        found = rates(asked)
        workshop.say(f"images a second by processes: { {k: round(v) for k, v in found.items()} }")
        left = (end - time.monotonic()) / asked.scale
        at_once, epochs = choice(found, images, left)
        workshop.say(f"{at_once} at once; the longest pre-training has {epochs} epochs")
        stages = [*breadth(whole), *depth(whole, epochs, round(asked.scale * images))]
        workshop.prepare(whole)
        write_json(kept, {"at_once": at_once, "stages": stages, "rates": found})
    read = read_json(kept)
    return read["at_once"], read["stages"]


if __name__ == "__main__":
    main()
