"""Reads ONNX files of any program: the model, its external weights, and facts of its graph."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, EncodeError, Message
from onnx import TensorProto
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from rrcm.core import formats
from rrcm.core.errors import BackendError, one_line
from rrcm.core.files import read_bytes, require_file
from rrcm.core.files import sha256 as sha256_of_file
from rrcm.inference.backends.onnx import DATA, LARGEST, REFUSALS, require_data, undamaged

BROKEN = (  # errors of onnx and ONNX Runtime on a damaged file
    *(DecodeError, EncodeError, onnx.checker.ValidationError, *REFUSALS),
    *(ValueError, TypeError, KeyError, IndexError, OverflowError, RuntimeError, OSError),
)
WEIGHTS = 2**36  # most bytes of a file of external weights
TORCH = (
    ", not ONNX: --checkpoint FILE recognises weights, --timm NAME --weights FILE takes those of a "
    "name, rrcm.smooth(network, ...) networks; `torch.onnx.export` writes ONNX of a network"
)
PRECISIONS = {  # from the lowest, which is that of a network
    "int4": (TensorProto.INT4, TensorProto.UINT4),
    "int8": (TensorProto.INT8, TensorProto.UINT8),
    "bf16": (TensorProto.BFLOAT16,),
    "fp16": (TensorProto.FLOAT16,),
    "fp32": (TensorProto.FLOAT,),
    "fp64": (TensorProto.DOUBLE,),
}
SHAPED = ("Reshape", "Expand")  # operators whose second input is a shape
FEW, MOST = 4, 1024  # batch sizes that are tried, and the largest of them
SIZES, BRANCHES = ("Shape", "Size"), ("If", "Loop")
SIGMOIDS = ("Sigmoid", "QLinearSigmoid")
SAME_VALUES = (
    *("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"),
    *("QuantizeLinear", "DequantizeLinear"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class OnnxFile:
    """The ``model`` in a file and its bytes ``content``; ``identity`` are bytes that tell it apart.

    External weights are in the model, or if it cannot hold them, in the folder ``beside``.
    """

    model: onnx.ModelProto
    content: bytes
    identity: bytes
    beside: Path | None


def read(path: Path) -> OnnxFile:
    """Read a file, and its external weights.

    Both may be links, as in the cache of Hugging Face: weights lie in the folder of the file, or in
    that of the file which it links to; all others are refused.

    Raises:
        BackendError: The file is missing or damaged, or its weights are.
    """
    if path.is_dir():
        raise BackendError(f"{path}: a folder; name the .onnx file in it")
    raw = read_bytes(path, BackendError, most=LARGEST)
    if said := formats.told(path, "", own=("onnx",)):
        raise BackendError(f"{path}: {said}{TORCH if 'PyTorch' in said else ''}")
    try:
        model, about = undamaged(raw, path)
        if {"run", "weights", DATA} <= about.keys():
            require_data(path.parent, about)
        tensors = [tensor for tensor in _tensors(model) if uses_external_data(tensor)]
        identity, beside = model.SerializeToString(deterministic=True) if tensors else b"", None
        folder, files = _without_links(tensors, path)
        each = [ExternalDataInfo(tensor) for tensor in tensors]
        sizes = [one.length or (folder / one.location).stat().st_size for one in each]
        if path.stat().st_size + sum(sizes) < LARGEST:
            onnx.load_external_data_for_model(model, str(folder))  # refuses links and other folders
            onnx.checker.check_model(model)
            content = identity = model.SerializeToString(deterministic=True)
        else:  # ONNX Runtime reads them, and refuses other folders, too
            identity += "".join(map(sha256_of_file, files)).encode()
            content, beside = model.SerializeToString(deterministic=True), folder
    except BROKEN as error:
        raise BackendError(f"{path}: no ONNX file that can run: {one_line(error)}") from None
    return OnnxFile(model=model, content=content, identity=identity, beside=beside)


def precision(model: onnx.ModelProto) -> str:
    """The lowest precision of its tensors, or to which a tensor is cast: ``fp16``, ``int8``, …"""
    kinds = {tensor.data_type for tensor in _tensors(model)}
    casts = [node for node in model.graph.node if node.op_type == "Cast"]
    halves = {*PRECISIONS["bf16"], *PRECISIONS["fp16"]}
    kinds |= {one.i for cast in casts for one in cast.attribute if one.name == "to"} & halves
    return next((name for name, own in PRECISIONS.items() if kinds.intersection(own)), "fp32")


def batches(model: onnx.ModelProto) -> list[int]:
    """Batch sizes above 2 that the file may fix: first axes of the shapes that tensors get."""
    constants = {one.name: one for one in model.graph.initializer} | {
        node.output[0]: one.t
        for node in model.graph.node
        for one in node.attribute
        if node.op_type == "Constant" and one.name == "value"
    }
    shapes = [
        onnx.numpy_helper.to_array(constants[node.input[1]]).ravel().tolist()
        for node in model.graph.node
        if node.op_type in SHAPED and node.input[1:] and node.input[1] in constants
    ]
    counted = Counter(shape[0] for shape in shapes if shape and 2 < shape[0] <= MOST)
    return [size for size, _ in counted.most_common(FEW)]


def combines(model: onnx.ModelProto, pictures: str, *, batch: int) -> str:
    """The first node that makes something of all ``pictures`` together, or branches by them.

    `_combining.Combined` of a graph, whose axes tell: of an open batch (0) what has no open axis,
    of a fixed one a single number. It is empty if there is none.
    """
    with suppress(*BROKEN):  # as of a file of 2 GiB
        model = onnx.shape_inference.infer_shapes(model)
    return _combines(model.graph, {pictures}, batch=batch)


def _combines(graph: onnx.GraphProto, made: set[str], *, batch: int) -> str:
    """The same of the tensors ``made`` of the pictures, which grow."""
    shapes = {one.name: one.type.tensor_type for one in graph.value_info}
    for node in graph.node:
        branches = [one.g for one in node.attribute if one.HasField("g")]
        if node.op_type in SIZES or made.isdisjoint(_read_by(node)):
            continue
        made.update(node.output)
        several = any(_of_several(shapes[name], batch) for name in node.output if name in shapes)
        if several or (node.op_type in BRANCHES and not made.isdisjoint(node.input[:2])):
            return node.name or node.op_type
        for branch in branches:
            passed = zip(branch.input, node.input, strict=False)  # those of loops, in their order
            inside = {one.name for one, outer in passed if outer in made}
            if place := _combines(branch, made | inside, batch=batch):
                return place
    return ""


def boundary(model: onnx.ModelProto, output: str) -> float:
    """Where a single score parts two classes: at 1/2 if Sigmoid makes it, else at 0."""
    makers = {name: node for node in model.graph.node for name in node.output}
    while (node := makers.get(output)) and node.op_type in SAME_VALUES:
        output = node.input[0]
    return 0.5 if node and node.op_type in SIGMOIDS else 0.0


def _read_by(node: onnx.NodeProto) -> set[str]:
    """The tensors that a node reads, in its branches too."""
    branches = [one.g for one in node.attribute if one.HasField("g")]
    return {*node.input}.union(*(_read_by(one) for branch in branches for one in branch.node))


def _of_several(kind: onnx.TypeProto.Tensor, batch: int) -> bool:
    """Whether a tensor that is made of the pictures has no part for each of them."""
    if not kind.HasField("shape"):
        return False
    if batch:
        return all(side.dim_value == 1 for side in kind.shape.dim)
    return all(side.HasField("dim_value") for side in kind.shape.dim)


def _without_links(tensors: list[TensorProto], path: Path) -> tuple[Path, list[Path]]:
    """Have external tensors name the files that links end at; the folder of these, and all."""
    entries = [e for tensor in tensors for e in tensor.external_data if e.key == "location"]
    ends = {}
    for name in sorted({entry.value for entry in entries}):
        try:
            require_file(path.parent / name, BackendError, most=WEIGHTS)
        except BackendError as error:
            raise BackendError(f"{path}: its weights are not beside it: {error}") from None
        ends[name] = (path.parent / name).resolve()
    for folder in (path.parent.resolve(), path.resolve().parent):
        if all(end.is_relative_to(folder) for end in ends.values()):
            for entry in entries:
                entry.value = str(ends[entry.value].relative_to(folder))
            return folder, [*ends.values()]
    raise BackendError(
        f"{path}: no ONNX file that can run: its weights {', '.join(ends)} lie, or are links to "
        "files, outside of its folder; copy them into it"
    )


def _tensors(message: Message) -> Iterator[TensorProto]:
    """All tensors of a message, at any depth."""
    if isinstance(message, TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for child in value if field.is_repeated else [value]:
                yield from _tensors(child)
