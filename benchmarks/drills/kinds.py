"""A small file of every kind that a command reads, and its reader; see corruption.py."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from PIL import Image
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))

from builders import random_votes

from rrcm.certification import certify, tables, tsv
from rrcm.certification.sampling.journal import Journal
from rrcm.certification.votes import records
from rrcm.config import params
from rrcm.config.certification import Export
from rrcm.config.foreign import Foreign
from rrcm.config.sections import Data, Model
from rrcm.core import registry
from rrcm.core.files import sha256
from rrcm.data import image_folder
from rrcm.data.datasets import digits
from rrcm.data.ingest import sharding
from rrcm.data.ingest.listing import Listing
from rrcm.data.splits import pictures, shards
from rrcm.data.splits.pictures import Fit
from rrcm.data.splits.shards import Split
from rrcm.inference import export
from rrcm.inference.backends import onnx as ours
from rrcm.inference.foreign import onnx as theirs
from rrcm.models import state_dict
from rrcm.models.trained.base import checkpoint, classifier
from rrcm.training.engine.loop import State

RUN, SIGMA = "a-run", 0.5
SHAPE = {"size": "32x2x2", "image_size": 8, "channels": 1, "patch_size": 4, "position_std": 0.5}
SHAPE |= {"init": "pytorch", "projector_width": 32, "projector_dim": 16}
PIXELS = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@dataclass(kw_only=True)
class Kind:
    """A kind of file: the path of a valid one, and the product's reader.

    ``knows`` is whether the file has enough redundancy to detect damage. ``part`` decides whether a
    result of the reader is a valid part of the ``whole``.
    """

    name: str
    file: Path
    read: Callable[[Path], Any]
    knows: bool = True
    part: Callable[[Any, Any], bool] = lambda found, whole: found == whole


def kinds(root: Path) -> list[Kind]:
    """Make a small file of every kind in ``root``."""
    return [*_models(root), *_state_dicts(root), *_results(root), *_data(root)]


def _models(root: Path) -> list[Kind]:
    """Files of training and export: a classifier, its ONNX file, and a state to resume from."""
    torch.manual_seed(0)
    model = Model(architecture="vit", shape=SHAPE)
    network = classifier.build(model, classes=10, condition="exact", final_norm=True)
    torch.nn.init.normal_(network.head.weight)
    config = {"classes": list(digits.CLASSES), "sigma": SIGMA}
    config |= {"condition": "exact", "final_norm": True}
    classifier.save(root / f"models/{RUN}", network.state_dict(), model=model, config=config)
    weights, path = root / f"models/{RUN}/model.safetensors", root / f"onnx/{RUN}.onnx"
    about = {"run": RUN, "weights": sha256(weights), "classes": config["classes"], "sigma": SIGMA}
    cfg = Export(opset=20, parity_images=2, tolerance=1e-3)
    network = classifier.load(weights.parent)[0]
    folded = registry.load("folding", "vit").fold(network)
    export.export(network, folded, path, _digits(2), about, cfg)
    apart = root / f"apart/onnx/{RUN}.onnx"
    apart.mkdir(parents=True)
    graph = onnx.load(path)
    ours.unload(graph, apart / ours.DATA)
    said = {prop.key: prop.value for prop in graph.metadata_props}
    ours.write(graph, apart / ours.GRAPH, said | {ours.DATA: sha256(apart / ours.DATA)})
    foreign = root / "foreign.onnx"
    plain = onnx.load(path)
    del plain.metadata_props[:]
    onnx.save(plain, foreign)
    state = root / "state.safetensors"
    _state().save(state)
    return [
        Kind(name="model.safetensors", file=weights, read=_tensors),
        Kind(name="state to resume from", file=state, read=_resumed),
        Kind(name="our .onnx", file=path, read=lambda _: _own(root)),
        Kind(name="our .onnx, by --onnx", file=path, read=_their_own),
        Kind(name="our graph, of a folder", file=apart / ours.GRAPH, read=lambda _: _own(apart)),
        Kind(name="our weights, of a folder", file=apart / ours.DATA, read=lambda _: _own(apart)),
        Kind(name="somebody's .onnx", file=foreign, read=_their_own, part=_rightly_named),
    ]


def _own(root: Path) -> tuple[str, list[str], bytes]:
    root = root.parents[1] if root.name.endswith(".onnx") else root
    how = {"precision": "fp32", "device": "cpu", "calibration": None}
    found = ours.Backend(root, RUN, sigma=SIGMA, **how)
    return found.weights, found.classes, found.scores(PIXELS).numpy().tobytes()


def _their_own(path: Path) -> tuple[str, bytes]:
    found = theirs.Backend(Foreign(kind="onnx", source=path, sigma=SIGMA))
    return found.weights, found.scores(PIXELS).numpy().tobytes()


def _rightly_named(found: tuple[str, bytes], whole: tuple[str, bytes]) -> bool:
    """Whether a different function has a different name, so that it is not confused."""
    return found == whole or found[0] != whole[0]


def _digits(count: int) -> Split:
    rng = np.random.default_rng(0)
    return Split(
        idx=np.arange(count),
        images=rng.integers(0, 17, (count, 1, 8, 8), dtype=np.uint8),
        labels=np.arange(count) % 10,
        classes=digits.CLASSES,
        max_value=16,
    )


def _state() -> State:
    torch.manual_seed(0)
    network = torch.nn.Linear(8, 8)
    state = State(modules={"network": network}, optimizer=torch.optim.AdamW(network.parameters()))
    network(torch.ones(1, 8)).sum().backward()
    state.optimizer.step()
    state.step, state.log = 7, [{"step": 7, "loss": 0.5}]
    return state


def _resumed(path: Path) -> tuple[Any, ...]:
    state = _state()
    state.resume(path)
    tensors = checkpoint.digest(state.modules["network"].state_dict(), None)
    return tensors, str(state.optimizer.state_dict()), state.step, json.dumps(state.log)


def _tensors(path: Path) -> str:
    tensors, text = checkpoint.load(path)
    return checkpoint.digest(tensors, text)


def foreign(path: Path) -> str:
    return checkpoint.digest(state_dict.find(path, ("state_dict",), hint="none").tensors, None)


def _state_dicts(root: Path) -> list[Kind]:
    tensors = {f"layer.{k}": torch.randn(8, 3 * k + 1) for k in range(6)}
    paths = [root / name for name in ("zip.pth", "legacy.pth", "foreign.safetensors")]
    torch.save({"state_dict": tensors, "epoch": 3}, paths[0])
    torch.save(tensors, paths[1], _use_new_zipfile_serialization=False)
    save_file(tensors, paths[2])
    return [
        Kind(name="somebody's .pth, zip", file=paths[0], read=foreign),
        Kind(name="somebody's .pth, legacy", file=paths[1], read=foreign, knows=False),
        Kind(name="somebody's .safetensors", file=paths[2], read=foreign, knows=False),
    ]


def _results(root: Path) -> list[Kind]:
    header, rows = random_votes(0, images=12)
    drawn, journal = root / "a.jsonl", root / "a.journal"
    records.write(drawn, header, rows)
    records.write(journal, header, rows)
    table = certify.certify(header, rows, certificates=["cohen"], alpha=0.001)
    certify.write(table, root / "a.csv")
    tsv.write(table, root / "a.tsv")

    def opened(path: Path) -> dict[int, records.Row]:
        with Journal(path, header) as found:
            return found.rows

    return [
        Kind(name="votes .jsonl", file=drawn, read=records.read),
        Kind(name="votes while they are drawn", file=journal, read=opened, part=_fewer),
        Kind(name="certificates .csv", file=root / "a.csv", read=_cells(certify.read), knows=False),
        Kind(name="table .tsv", file=root / "a.tsv", read=_cells(tables.read), knows=False),
    ]


def _fewer(found: dict[int, records.Row], whole: dict[int, records.Row]) -> bool:
    """Whether all rows are those of the ``whole``; missing ones are drawn again."""
    return all(whole.get(idx) == row for idx, row in found.items())


def _cells(read: Callable[[Path], Any]) -> Callable[[Path], str]:
    return lambda path: read(path).to_csv()


def _data(root: Path) -> list[Kind]:
    """Shards, pictures, labels and params.yaml."""
    folder = root / "shards/test"
    cfg = Data(
        name="digits",
        seed=0,
        test=40,
        validation=20,
        choice=20,
        shard_size=50,
        size=8,
        channels=1,
        crop=1.0,
    )
    made = _digits(200)
    listing = Listing(
        classes=made.classes,
        max_value=made.max_value,
        idx=made.idx,
        labels=made.labels,
        held=np.zeros(200, dtype=bool),
        images=made.images,
        size=made.images.nbytes,
    )
    for _ in sharding.write(listing, root / "shards", cfg, scratch=root / "scratch", workers=1):
        pass
    drawn = root / "pictures"
    drawn.mkdir()
    rng = np.random.default_rng(0)
    for number in range(4):
        image = Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8))
        image.resize((64, 64)).save(drawn / f"{number}.{'png' if number % 2 else 'jpg'}")
    labels = root / "labels.csv"
    lines = [f"{path.name},{path.stem}" for path in sorted(drawn.iterdir())]
    labels.write_text("\n".join(["file,label", *lines]) + "\n")
    described = root / "params.yaml"
    shutil.copyfile("presets/digits.yaml", described)
    fit = Fit(shape=(1, 8, 8), resize="squash")

    def split(_: Path) -> tuple[bytes, ...]:
        found = shards.read(root / "shards", "test")
        about = (found.classes, found.max_value, found.images.shape)
        return (
            found.images.tobytes(),
            found.labels.tobytes(),
            found.idx.tobytes(),
            str(about).encode(),
        )

    def labelled(path: Path) -> list[int]:
        how = {"classes": [*"0123"], "named": False, "labels": path, "strict": False}
        return image_folder.folder(drawn, fit, **how).split.labels.tolist()

    def pixels(path: Path) -> bytes:
        return pictures.read(path, fit).tobytes()

    return [
        Kind(name="shard .tar", file=next(folder.glob("*.tar")), read=split),
        Kind(name="images.npy of shards", file=folder / shards.ROWS, read=split),
        Kind(name="index.json of shards", file=folder / "index.json", read=split),
        Kind(name="params.yaml", file=described, read=lambda p: str(params.load(p)), knows=False),
        Kind(name="labels .csv", file=labels, read=labelled, knows=False),
        Kind(name="picture .png", file=drawn / "1.png", read=pixels, knows=False),
        Kind(name="picture .jpg", file=drawn / "2.jpg", read=pixels, knows=False),
    ]
