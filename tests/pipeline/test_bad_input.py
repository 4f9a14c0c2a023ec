"""Bad input to a stage: an error of one line, and nothing half-written."""

import json
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from builders import refused
from onnx import numpy_helper
from workspace import EVAL, RUN, Workspace

from pipeline.stages import certify, sample, shard, train
from rrcm.core.errors import RrcmError
from rrcm.inference.backends.onnx import write


def alter_shard(checkout: Workspace) -> None:
    path = checkout.path / "shards/train/000000.tar"
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    path.write_bytes(content)


def rewrite_onnx(checkout: Workspace, change: Callable[[onnx.ModelProto], None]) -> None:
    path = checkout.path / f"onnx/{RUN}.onnx"
    model = onnx.load(path)
    change(model)
    path.unlink()
    write(model, path, {prop.key: prop.value for prop in model.metadata_props})


def seven_classes(model: onnx.ModelProto) -> None:
    text = {p.key: p.value for p in model.metadata_props} | {"classes": json.dumps([*"0123456"])}
    onnx.helper.set_model_props(model, text)


def nan_weights(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = np.full_like(numpy_helper.to_array(tensor), np.nan)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def votes_of_another_run(checkout: Workspace) -> None:
    path = checkout.path / f"votes/{EVAL}.jsonl"
    other = (checkout.path / "votes/tiny-gaussian-s050-e050.jsonl").read_bytes()
    path.unlink()
    path.write_bytes(other)


CASES = {
    "unknown key": (
        lambda checkout: checkout.edit(lambda p: p["certify"].update(alhpa=1)),
        shard.main,  # the first stage, which reads nothing of it
        "certify: unknown key 'alhpa'. Did you mean 'alpha'?",
    ),
    "precision that the backend has not": (
        lambda checkout: checkout.edit(lambda p: p["sample"].update(precision="bf16")),
        lambda: sample.main(EVAL),
        "backend onnx",
    ),
    "altered shard": (alter_shard, lambda: train.main(RUN), "shards/train/000000.tar: SHA-256 is"),
    "checkpoint of another architecture": (
        lambda checkout: checkout.edit(lambda p: p["models"]["tiny"].update(patch_size=2)),
        lambda: train.main(RUN),
        "pretrained/tiny/encoder.safetensors: a checkpoint of another architecture: pos_embed",
    ),
    "class count of the ONNX file": (
        lambda checkout: rewrite_onnx(checkout, seven_classes),
        lambda: sample.main(EVAL),
        "10 scores per image, but 7 classes in its metadata",
    ),
    "NaN scores": (
        lambda checkout: rewrite_onnx(checkout, nan_weights),
        lambda: sample.main(EVAL),
        "NaN scores for image",
    ),
    "votes of another run": (
        votes_of_another_run,
        lambda: certify.main(EVAL),
        f"votes of tiny-gaussian-s050 at sigma 0.5, but evals.{EVAL} is {RUN}",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input(case: str, checkout: Workspace, monkeypatch: pytest.MonkeyPatch):
    spoil, stage, message = CASES[case]
    outputs = ("shards", "pretrained", "models", "onnx", "votes", "certificates", "report")
    spoil(checkout)
    before = {folder: checkout.digest(f"{folder}/**/*.*") for folder in outputs}
    monkeypatch.chdir(checkout.path)

    with refused(RrcmError, message):
        stage()

    assert {folder: checkout.digest(f"{folder}/**/*.*") for folder in outputs} == before
