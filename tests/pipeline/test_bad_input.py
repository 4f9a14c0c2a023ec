"""Bad input to a stage: one line, exit code 1, and nothing half-written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import refused
from onnx import numpy_helper
from workspace import EVAL, MINI, RUN, Workspace

from pipeline import checked
from rrcm.config import params as params_yaml
from rrcm.core.errors import ConfigError
from rrcm.inference.backends.onnx import write


def params(change: Callable) -> Callable[[Workspace], None]:
    return lambda checkout: checkout.edit(change)


def truncate_shard(checkout: Workspace) -> None:
    shard = checkout.path / "shards/test/000000.tar"
    shard.chmod(0o644)
    shard.write_bytes(shard.read_bytes()[:-2048])


def alter_shard(checkout: Workspace) -> None:
    shard = checkout.path / "shards/train/000000.tar"
    shard.chmod(0o644)
    content = bytearray(shard.read_bytes())
    content[700] ^= 1
    shard.write_bytes(content)


def alter_raw_data(checkout: Workspace) -> None:
    raw = checkout.path / "data/digits/digits.csv"
    raw.chmod(0o644)
    raw.write_bytes(raw.read_bytes()[:-1] + b"!")


def rewrite_onnx(checkout: Workspace, change: Callable[[onnx.ModelProto], None]) -> None:
    path = checkout.path / f"onnx/{RUN}.onnx"
    model = onnx.load(path)
    change(model)
    path.unlink()
    write(model, path)


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
        params(lambda p: p["certify"].update(alhpa=1)),
        f"certify@{EVAL}",
        "certify: unknown key 'alhpa'. Did you mean 'alpha'?",
    ),
    "missing key": (
        params(lambda p: p["certify"].pop("alpha")),
        f"certify@{EVAL}",
        "certify: missing alpha",
    ),
    "mistyped value": (
        params(lambda p: p["sample"].update(n="many")),
        f"sample@{EVAL}",
        "sample.n: expected int, got 'many'",
    ),
    "unknown section": (
        params(lambda p: p.update(smaple=p["sample"])),
        "report",
        "params.yaml: unknown key 'smaple'. Did you mean 'sample'?",
    ),
    "constant of a method": (
        params(lambda p: p["runs"][RUN]["loss"].update(lambda_=1.0)),
        "shard",  # the first stage, which reads nothing of it
        f"runs.{RUN}.loss: unknown key 'lambda_'",
    ),
    "sigma": (
        params(lambda p: p["runs"][RUN].update(sigma=0.0)),
        f"train@{RUN}",
        f"runs.{RUN}.sigma: must be positive, got 0.0",
    ),
    "alpha": (
        params(lambda p: p["certify"].update(alpha=1.0)),
        f"certify@{EVAL}",
        "certify.alpha: must be in (0, 1), got 1.0",
    ),
    "n too small ever to certify": (
        params(lambda p: p["sample"].update(n=9)),
        f"sample@{EVAL}",
        "9 draws can never certify at certify.alpha = 0.001; at least 10 can",
    ),
    "scratch for a method that needs an encoder": (
        params(lambda p: p["runs"][RUN].update(start="none")),
        f"train@{RUN}",
        "rrcm starts from a pre-trained encoder",
    ),
    "stopping rule": (
        params(lambda p: p["sample"].update(stop="gird")),
        f"sample@{EVAL}",
        "sample.stop: 'gird' is not in stopping (none, grid, spending, anytime).",
    ),
    "constant of a stopping rule": (
        params(lambda p: p["stopping"]["grid"].update(beta=2.0)),
        f"sample@{EVAL}",
        "stopping.grid.beta: must lie in (0, 1), got 2.0",
    ),
    "radius that the rule does not settle": (
        params(lambda p: p["report"].update(radii=[0.0, 0.3])),
        "report",
        "report.radii: 0.3 is not in stopping.grid.radii",
    ),
    "precision that the backend has not": (
        params(lambda p: p["sample"].update(precision="bf16")),
        f"sample@{EVAL}",
        "backend onnx",
    ),
    "raw data": (alter_raw_data, "shard", "data/digits/digits.csv: SHA-256 is"),
    "truncated shard": (truncate_shard, f"sample@{EVAL}", "shards/test/000000.tar: SHA-256 is"),
    "altered shard": (alter_shard, f"train@{RUN}", "shards/train/000000.tar: SHA-256 is"),
    "checkpoint of another architecture": (
        params(lambda p: p["models"]["tiny"].update(patch_size=2)),
        f"train@{RUN}",
        "pretrained/tiny/encoder.safetensors: a checkpoint of another architecture: pos_embed",
    ),
    "class count of the ONNX file": (
        lambda checkout: rewrite_onnx(checkout, seven_classes),
        f"sample@{EVAL}",
        "10 scores per image, but 7 classes in its metadata",
    ),
    "NaN scores": (
        lambda checkout: rewrite_onnx(checkout, nan_weights),
        f"sample@{EVAL}",
        "NaN scores for image",
    ),
    "votes of another run": (
        votes_of_another_run,
        f"certify@{EVAL}",
        f"votes of tiny-gaussian-s050 at sigma 0.5, but evals.{EVAL} is {RUN}",
    ),
}


# The check of params.yaml finds these before any stage begins; "unknown key" stands for them below.
AT_A_STAGE = ("unknown key", "precision that the backend has not")
CHECKED = [case for case in [*CASES][: [*CASES].index("raw data")] if case not in AT_A_STAGE]


@pytest.mark.parametrize("case", CHECKED)
def test_bad_parameters(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copyfile(MINI, tmp_path / "params.yaml")
    change, _, message = CASES[case]
    change(Workspace(tmp_path))
    monkeypatch.chdir(tmp_path)

    with refused(ConfigError, message):
        checked.check(params_yaml.load())


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.slow] if c in CHECKED else []) for c in CASES]
)
def test_bad_input(case: str, checkout: Workspace):
    spoil, stage, message = CASES[case]
    outputs = ("shards", "pretrained", "models", "onnx", "votes", "certificates", "report")
    spoil(checkout)
    before = {folder: checkout.digest(f"{folder}/**/*.*") for folder in outputs}

    output = checkout.stage(stage, fails=True)

    errors = [line for line in output.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and message in errors[0]
    assert "Traceback" not in output
    assert {folder: checkout.digest(f"{folder}/**/*.*") for folder in outputs} == before
