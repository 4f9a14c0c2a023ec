"""Converts an exported network to float16 or int8, a different function with its own certificate.

A certificate holds for a function of one image. So the scales of activations are fixed here, from
calibration images. Dynamic quantisation would take them from the whole batch: an image's vote would
depend on the other images of its batch, and no certificate would hold.

The quantisation is that of Jacob et al. (2018), arXiv:1712.05877: activations uint8 with a scale
and a zero point per tensor, weights int8 with a scale per output channel, sums int32. Weights are
at most 64 (``reduce_range``), so that the integers are the same on every processor: without VNNI, a
processor adds two products in 16 bits and saturates, and 2 x 255 x 64 < 2^15.
"""

import copy
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnxruntime.quantization import QuantType, quantize_static
from onnxruntime.quantization.quant_utils import add_pre_process_metadata

CHUNK = 64  # calibration images at a time


def float16(model: ModelProto, ends: Collection[str] = ("scores",)) -> ModelProto:
    """``model`` in float16 between its inputs and the tensors ``ends``.

    Inputs, and nodes after ``ends``, stay float32. Constants are computed as before, then rounded.
    """
    half = copy.deepcopy(model)
    graph = half.graph
    floats = {v.name for v in graph.value_info if v.type.tensor_type.elem_type == TensorProto.FLOAT}
    floats |= {t.name for t in graph.initializer if t.data_type == TensorProto.FLOAT}
    inputs = [value.name for value in graph.input]
    varying, cast = {*inputs}, {*inputs}
    nodes = [_cast(name, f"{name}.half", TensorProto.FLOAT16) for name in inputs]
    for node in graph.node:
        if varying.intersection(node.input):
            varying.update({*node.output} - {*ends})
            for attribute in node.attribute if node.op_type == "Cast" else ():
                if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                    attribute.i = TensorProto.FLOAT16
            fixed = {*node.input[2:]} if node.op_type == "Resize" else set()  # factors: float32
            constants = [
                n for n in dict.fromkeys(node.input) if n in floats - varying - cast - fixed
            ]
            nodes += [_cast(name, f"{name}.half", TensorProto.FLOAT16) for name in constants]
            cast.update(constants)
            node.input[:] = [f"{n}.half" if n in cast - fixed else n for n in node.input]
            last = [name for name in node.output if name in ends]
            node.output[:] = [f"{n}.half" if n in last else n for n in node.output]
            nodes.append(node)
            nodes += [_cast(f"{name}.half", name, TensorProto.FLOAT) for name in last]
        else:
            nodes.append(node)
    used = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.node[:], graph.initializer[:], graph.value_info[:]  # the types are the old ones
    graph.node.extend(nodes)
    graph.initializer.extend(kept)
    return half


def int8(model: ModelProto, pixels: np.ndarray) -> ModelProto:
    """``model`` with linear layers in int8 and everything else in float32.

    Its only input is ``x``; linear layers are Gemm nodes of constant weights. Activations are
    clipped to their ranges on ``pixels``, noisy images as it will see them, float32 [N, C, H, W].
    """
    folded = copy.deepcopy(model)
    add_pre_process_metadata(folded)  # else it advises to optimise the model before
    chunks = ({"x": pixels[i : i + CHUNK]} for i in range(0, len(pixels), CHUNK))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        quantize_static(
            folded,
            path,
            SimpleNamespace(get_next=lambda: next(chunks, None)),
            op_types_to_quantize=["Gemm"],
            per_channel=True,
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options={"OpTypesToExcludeOutputQuantization": ["Gemm"]},
        )
        return onnx.load(path)


def _cast(name: str, to: str, kind: int) -> NodeProto:
    return helper.make_node("Cast", [name], [to], to=kind)
