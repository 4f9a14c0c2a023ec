"""Classifiers on disk as ONNX files, built by hand."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def save(path: Path, rows: np.ndarray, bias=(0.0, 0.0)) -> None:
    """Scores of two classes, from squared pixels [1, 4, 4]; the file leaves all its axes open."""
    w = numpy_helper.from_array(rows.astype(np.float32), "w")
    b = numpy_helper.from_array(np.array(bias, dtype=np.float32), "b")
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "x"], ["squares"]),
            helper.make_node("Flatten", ["squares"], ["flat"]),
            helper.make_node("Gemm", ["flat", "w", "b"], ["scores"]),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", "c", "h", "w"))],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ("n", "k"))],
        [w, b],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
