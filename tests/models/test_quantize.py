"""Conversions are their equations, with scales that no batch can move."""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from rrcm.models.trained import quantize

RNG = np.random.default_rng(0)
WEIGHTS = {
    "w1": RNG.normal(size=(24, 12)).astype("f") * np.geomspace(0.01, 10, 24, dtype="f")[:, None],
    "b1": RNG.normal(size=24).astype("f"),
    "w2": RNG.normal(size=(5, 24)).astype("f"),
}
PIXELS = RNG.uniform(-1, 3, size=(150, 3, 2, 2)).astype("f")


def network(weights):
    """scores = relu(x w1' + b1) w2', with a constant that nodes compute, as sigma's are."""
    nodes = [
        helper.make_node("Sqrt", ["four"], ["two"]),
        helper.make_node("Div", ["x", "two"], ["half an x"]),
        helper.make_node("Flatten", ["half an x"], ["h0"]),
        helper.make_node("Gemm", ["h0", "w1", "b1"], ["h1"], transB=1),
        helper.make_node("Relu", ["h1"], ["h2"]),
        helper.make_node("Gemm", ["h2", "w2"], ["scores"], transB=1),
    ]
    x, scores, two = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["batch", 3, 2, 2]), ("scores", ["batch", 5]), ("two", []))
    )
    constants = weights | {"four": np.array(4, dtype="f")}
    graph = helper.make_graph(
        nodes,
        "a network",
        [x],
        [scores],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
        value_info=[two],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def run(model, x):
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(["scores"], {"x": x})[0]


def exact(x, weights):
    h0 = x.reshape(len(x), -1).astype("d") / 2
    h2 = np.maximum(h0 @ weights["w1"].T + weights["b1"], 0)
    return h0, h2, h2 @ weights["w2"].T


def on_grid(value, low, high):
    """The nearest of 256 points from ``low`` to ``high`` of which one is 0."""
    scale = (high - low) / 255
    zero = np.rint(-low / scale)
    return (np.clip(np.rint(value / scale) + zero, 0, 255) - zero) * scale


def weights_on_grid(w):
    scale = abs(w).max(axis=1, keepdims=True).astype("d") / 64
    return np.rint(w / scale) * scale


def test_int8_is_its_equation():
    """Integers of activations per tensor and of weights per channel; all between is exact."""
    x = RNG.uniform(-2, 4, size=(40, 3, 2, 2)).astype("f")  # beyond what was calibrated
    seen0, seen2, _ = exact(PIXELS, WEIGHTS)
    h0 = on_grid(exact(x, WEIGHTS)[0], seen0.min(), seen0.max())
    h2 = np.maximum(h0 @ weights_on_grid(WEIGHTS["w1"]).T + WEIGHTS["b1"], 0)
    expected = on_grid(h2, 0, seen2.max()) @ weights_on_grid(WEIGHTS["w2"]).T

    got = run(quantize.int8(network(WEIGHTS), PIXELS), x)

    # A step of h2 that rounds the other way is 0.3 % of its range; all but a few must agree.
    differences = abs(got - expected) / abs(expected).max()
    assert np.median(differences) < 1e-5
    assert differences.max() < 0.005
    assert abs(got - run(network(WEIGHTS), x)).max() > 0.01 * abs(got).max()


def test_float16_leaves_the_factors_of_a_resize_as_they_are():
    """They must be float32 where the picture is float16."""
    model = network(WEIGHTS)
    model.graph.node[1].output[0] = "small"
    resize = helper.make_node("Resize", ["small", "", "factors"], ["large"], mode="nearest")
    pool = helper.make_node(
        "AveragePool", ["large"], ["half an x"], kernel_shape=[2, 2], strides=[2, 2]
    )
    for place, node in ((2, resize), (3, pool)):
        model.graph.node.insert(place, node)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 2, 2], "f"), "factors"))
    scores = run(network(WEIGHTS), PIXELS)

    found = run(quantize.float16(model), PIXELS)

    assert 0 < abs(found - scores).max() < 0.01 * abs(scores).max()


def test_a_layer_of_zeros_and_a_large_bias_survive():
    """No scale is 0, and a bias fits into 32 bits of integers however small its weights are."""
    weights = WEIGHTS | {"w1": WEIGHTS["w1"].copy(), "b1": WEIGHTS["b1"].copy()}
    weights["w1"][:3] = [[0], [0], [1e-12]]
    weights["b1"][:3] = [0, 7, 7]
    nothing = {name: np.zeros_like(value) for name, value in WEIGHTS.items()}

    scores = run(quantize.int8(network(weights), PIXELS), PIXELS)

    assert abs(scores - exact(PIXELS, weights)[2]).max() < 0.04 * abs(scores).max()
    assert not run(quantize.int8(network(nothing), PIXELS), PIXELS).any()


def test_float16_rounds_weights_and_activations():
    x = PIXELS[:20]
    halves = {name: value.astype(np.float16) for name, value in WEIGHTS.items()}
    expected = exact(x.astype(np.float16), halves)[2]

    scores = run(quantize.float16(network(WEIGHTS)), x)

    # On a CPU sums stay in float32, and so may what is between two layers.
    assert scores.dtype == np.float32
    assert abs(scores - expected).max() < 1e-3 * abs(expected).max()
    assert not np.allclose(scores, run(network(WEIGHTS), x), rtol=0, atol=1e-5)


def test_float16_keeps_the_arithmetic_of_constants():
    """What sigma decides is computed in the precision of the file, and rounded once."""
    model = quantize.float16(network(WEIGHTS))
    (root,) = (node for node in model.graph.node if node.op_type == "Sqrt")

    assert root.input == ["four"]
    assert {cast.input[0] for cast in model.graph.node if cast.op_type == "Cast"} == {
        *("x", "two", "w1", "b1", "w2", "scores.half")
    }
