"""Converts an exported network to float16 or int8, a different function with its own certificate.

A certificate holds for a function of one image. So the scales of activations are fixed here, from
calibration images. Dynamic quantisation would take them from the whole batch: an image's vote would
depend on the other images of its batch, and no certificate would hold.

The quantisation is that of Jacob et al. (2018), arXiv:1712.05877: activations uint8 with a scale
and a zero point per tensor, weights int8 with a scale per output channel, sums int32. Weights are
at most ``LARGEST``, so that the integers are the same on every processor.
"""

from collections.abc import Collection

import numpy as np
import onnxruntime
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

CHUNK = 64  # calibration images at a time
# Without VNNI, a processor adds two products in 16 bits and saturates: a different, less accurate
# function. With 64 there is no overflow: 2 x 255 x 64 < 2^15.
LARGEST = 64


def float16(model: ModelProto, ends: Collection[str] = ("scores",)) -> ModelProto:
    """``model`` in float16 between its inputs and the tensors ``ends``.

    Inputs, and nodes after ``ends``, stay float32. Constants are computed as before, then rounded.
    """
    half = _copy(model)
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
    return _with(half, nodes)


def int8(model: ModelProto, pixels: np.ndarray) -> ModelProto:
    """``model`` with linear layers in int8 and everything else in float32.

    Activations are clipped to their ranges on ``pixels``.

    Args:
        model: Its only input is ``x``; linear layers are Gemm nodes of constant weights [O, I].
        pixels: Noisy images as the network will see them, float32 [N, C, H, W].
    """
    quantised = _copy(model)
    graph = quantised.graph
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    inputs = dict.fromkeys(node.input[0] for node in graph.node if node.op_type == "Gemm")
    scales = _scales(model, list(inputs), pixels)
    nodes = []
    for node in graph.node:
        if node.op_type == "Gemm":
            x, weight, *bias = node.input  # the exporter omits a bias of zeros
            names = [f"{node.output[0]}.{part}" for part in ("weight", "bias")]
            offset = tensors[bias[0]] if bias else np.zeros(1, dtype=np.float32)
            integers, scale = _integers(tensors[weight], offset, scales[x][0])
            nodes.append(_rounded(graph, names[0], integers, scale))
            if bias:
                scale = scales[x][0] * scale
                nodes.append(
                    _rounded(graph, names[1], np.rint(offset / scale).astype(np.int32), scale)
                )
            node.input[:] = [f"{name}.rounded" for name in (x, *names)[: len(node.input)]]
        nodes.append(node)
        for x in scales.keys() & set(node.output):
            names = [f"{x}.scale", f"{x}.zero"]
            graph.initializer.extend(map(numpy_helper.from_array, scales[x], names))
            nodes.append(helper.make_node("QuantizeLinear", [x, *names], [f"{x}.integers"]))
            nodes.append(
                helper.make_node("DequantizeLinear", [f"{x}.integers", *names], [f"{x}.rounded"])
            )
    return _with(quantised, nodes)


def _scales(
    model: ModelProto, names: list[str], pixels: np.ndarray
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Scale and zero point of tensors from their ranges on ``pixels``; 0 stays exact."""
    observed = _copy(model)
    del observed.graph.output[:]
    for name in names:
        for op in ("ReduceMin", "ReduceMax"):
            observed.graph.node.append(helper.make_node(op, [name], [f"{name}.{op}"], keepdims=0))
            observed.graph.output.append(
                helper.make_tensor_value_info(f"{name}.{op}", TensorProto.FLOAT, [])
            )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        observed.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    chunks = [pixels[i : i + CHUNK] for i in range(0, len(pixels), CHUNK)]
    seen = np.array([session.run(None, {"x": chunk}) for chunk in chunks])
    lows = np.minimum(seen[:, 0::2].min(axis=0), 0)
    highs = np.maximum(seen[:, 1::2].max(axis=0), 0)
    scales = np.where(highs > lows, (highs - lows) / 255, 1).astype(np.float32)
    zeros = np.rint(-lows / scales).astype(np.uint8)
    return {name: (scales[i, ...], zeros[i, ...]) for i, name in enumerate(names)}


def _integers(
    weight: np.ndarray, bias: np.ndarray, x_scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Weight as int8 [O, I] and its scale per output channel [O]."""
    scale = abs(weight).max(axis=1) / LARGEST
    scale = np.maximum(scale, abs(bias) / (x_scale * 2**30))  # int32 must have room for the bias
    scale = np.where(scale > 0, scale, 1).astype(np.float32)
    return np.rint(weight / scale[:, None]).astype(np.int8), scale


def _rounded(graph: GraphProto, name: str, integers: np.ndarray, scale: np.ndarray) -> NodeProto:
    """The node that computes ``<name>.rounded`` from integers and a scale per output channel."""
    names = [f"{name}.integers", f"{name}.scale", f"{name}.zero"]
    zero = np.zeros(len(scale), integers.dtype)  # the default, but ORT fuses nothing without it
    graph.initializer.extend(map(numpy_helper.from_array, (integers, scale, zero), names))
    return helper.make_node("DequantizeLinear", names, [f"{name}.rounded"], axis=0)


def _cast(name: str, to: str, kind: int) -> NodeProto:
    return helper.make_node("Cast", [name], [to], to=kind)


def _copy(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def _with(model: ModelProto, nodes: list[NodeProto]) -> ModelProto:
    """``model`` with its nodes replaced, and without unused constants and the old types."""
    used = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    for field, values in ((model.graph.node, nodes), (model.graph.initializer, kept)):
        values = list(values)
        del field[:]
        field.extend(values)
    del model.graph.value_info[:]
    return model
