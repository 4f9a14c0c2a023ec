"""What the benchmark of the engine builds and counts; speed itself is measured, not tested."""

import pytest

from benchmarks import engine

CLASSES = 10


def lenet() -> int:
    """Multiply-adds of LeNet at 28 x 28: two convolutions of 5 x 5, two layers, the head."""
    return 24 * 24 * 20 * 25 + 8 * 8 * 50 * 20 * 25 + 800 * 500 + 500 * CLASSES


def resnet20() -> int:
    """Of ResNet-20 at 32 x 32: the stem, three stages of three blocks, the head; and shortcuts.

    Where channels double, the first convolution has half of them as input.
    """
    stem = 32 * 32 * 16 * 3 * 9
    stages = sum(
        side**2 * width**2 * 9 * 6 - (side**2 * width**2 * 9 // 2 if width > 16 else 0)
        for side, width in ((32, 16), (16, 32), (8, 64))
    )
    return stem + stages + 16**2 * 32 * 16 + 8**2 * 64 * 32 + 64 * CLASSES


def tiny() -> int:
    """Of the tiny ViT at 8 x 8, all 2 + 16 tokens in all four blocks, without its head."""
    width, tokens = 64, 18
    block = 12 * width**2 * tokens + 2 * width * tokens**2
    return 4 * block + 16 * 4 * width


@pytest.mark.parametrize(
    ("model", "expected"), [("lenet", lenet()), ("resnet20", resnet20()), ("tiny", tiny())]
)
def test_operations_are_two_for_each_multiply_add(tmp_path, model, expected):
    assert engine.prepare(tmp_path, model, engine.SIDES[model]).flops == 2 * expected


@pytest.mark.parametrize("precision", engine.PRODUCTS)
def test_onnx_runtime_has_products_of_each_type(precision):
    assert 0 < engine.onnx_peak(precision, threads=1, size=64) < float("inf")
