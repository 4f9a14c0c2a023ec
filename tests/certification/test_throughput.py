"""What `rrcm bench` builds and counts; speed itself is measured, not tested."""

import pytest
import torch
from builders import refused

from rrcm.certification.speed import throughput
from rrcm.core.errors import ConfigError


def lenet() -> int:
    """Multiply-adds of LeNet at 28 x 28: two convolutions of 5 x 5, two layers, the head."""
    return 24 * 24 * 20 * 25 + 8 * 8 * 50 * 20 * 25 + 800 * 500 + 500 * throughput.CLASSES


def resnet20() -> int:
    """Of ResNet-20 at 32 x 32: the stem, three stages of three blocks, the head.

    Where channels double, the first convolution has half of them as input. Shortcuts are not
    counted.
    """
    stem = 32 * 32 * 16 * 3 * 9
    stages = sum(
        side**2 * width**2 * 9 * 6 - (side**2 * width**2 * 9 / 2 if width > 16 else 0)
        for side, width in ((32, 16), (16, 32), (8, 64))
    )
    return int(stem + stages) + 64 * throughput.CLASSES


def tiny() -> int:
    """Of the tiny ViT at 8 x 8, all 2 + 16 tokens in all four blocks, without its head."""
    width, tokens = 64, 18
    block = 12 * width**2 * tokens + 2 * width * tokens**2
    return 4 * block + 16 * 4 * width


@pytest.mark.parametrize(("model", "expected"), [("lenet", lenet()), ("tiny", tiny())])
def test_operations_are_two_for_each_multiply_add(tmp_path, model, expected):
    subject = throughput.prepare(tmp_path, model, throughput.SIDES[model])

    assert subject.flops == 2 * expected
    assert (tmp_path / "onnx/bench.onnx").exists()


def test_operations_of_a_resnet_are_those_of_its_convolutions(tmp_path):
    shortcuts = 16**2 * 32 * 16 + 8**2 * 64 * 32

    found = throughput.prepare(tmp_path, "resnet20", 32).flops / 2

    assert resnet20() <= found <= resnet20() + shortcuts


@pytest.mark.parametrize("model", ["tiny", "lenet", "resnet20"])
def test_the_network_takes_the_images(tmp_path, model):
    subject = throughput.prepare(tmp_path, model, throughput.SIDES[model])

    scores = subject.network(torch.from_numpy(subject.split.pixels(slice(2))), torch.tensor(0.5))

    assert scores.shape == (2, throughput.CLASSES)


@pytest.mark.parametrize(
    ("model", "side", "words"),
    [
        ("lenett", None, ("--model lenett", "Did you mean 'lenet'?")),
        ("lenet", 27, ("--image-size 27", "8, 28, 32, 224")),
    ],
)
def test_what_cannot_be_built_is_refused(model, side, words):
    with refused(ConfigError, *words):
        throughput.measure(model, side, repeats=1, seconds=0.1, batches=())


@pytest.mark.parametrize(
    ("precision", "device", "expected"),
    [("fp32", "cpu", 3.0), ("bf16", "cpu", 2.0), ("int8", "cpu", 3.0), ("fp32", "cuda", 2.0)],
)
def test_the_peak_is_that_of_the_faster_library(monkeypatch, precision, device, expected):
    monkeypatch.setattr(throughput, "gemm_peak", lambda dtype, device: 2.0)
    monkeypatch.setattr(throughput, "onnx_peak", lambda precision, threads: 3.0)

    assert throughput.machine_peak(precision, device) == expected


@pytest.mark.parametrize("precision", throughput.PRODUCTS)
def test_onnx_runtime_has_products_of_each_type(precision):
    assert 0 < throughput.onnx_peak(precision, threads=1, size=64) < float("inf")


def test_the_table_says_what_would_be_chosen_and_why():
    rates = {("onnx", "fp32"): 100.0, ("torch", "fp32"): 120.0, ("torch", "bf16"): 90.0}
    rates |= {("onnx", "int8"): 300.0}
    rows = [
        {"backend": backend, "precision": precision, "batch_size": 64, "per_s": rate}
        | {"lowest": rate, "highest": rate, "ratio": rate / 100, "peak_fraction": None}
        for (backend, precision), rate in rates.items()
    ]
    result = {"model": "tiny", "image_size": 8, "mflop_per_image": 7, "machine": "this"}
    result |= {"threads": 1, "repeats": 1, "gemm_peak_gflops": {}, "engine": "onnx int8, batch 64"}
    result |= {"reference_per_s": 100.0, "reference_peak_fraction": 0.5, "toolbox_per_s": None}

    said = throughput.table(result | {"ratio": 3.0, "variants": rows}).splitlines()

    assert said[-3:] == [
        "--precision auto: torch fp32, batch 64, the fastest that is the network in fp32",
        "  with --allow bf16: the same, as torch bf16, batch 64 has 0.75 of its rate",
        "  with --allow int8: onnx int8, batch 64, 2.5 times that; another function, certified as "
        "such",
    ]
