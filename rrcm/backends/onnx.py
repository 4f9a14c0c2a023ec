"""ONNX Runtime: runs what was exported, on the CPU or a GPU.

That is a file, or for large networks a folder of a graph and its weights (rrcm/export.py). Of a
folder, the graph alone is read here: ONNX Runtime reads the weights, once, from where they lie.

The last entry of a file's metadata is the SHA-256 of all bytes before it, those of a graph, too,
which has the SHA-256 of its weights: so that no damaged file goes by the name of what it was.
"""

import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from google.protobuf.message import DecodeError
from torch import Tensor

from rrcm import quantize
from rrcm.errors import BackendError, one_line
from rrcm.files import read_bytes
from rrcm.files import sha256 as sha256_of_file

PRECISIONS = ("fp32", "fp16", "int8")
GRAPH, DATA = "model.onnx", "weights.data"  # of a folder; DATA is in its metadata, by its SHA-256
LARGEST = 2 * 10**9  # bytes of a file, as onnx has it; a protobuf message holds a little more
DIGEST = "rrcm-sha256"  # the last entry of the metadata
SMALL = 1024  # bytes of a tensor that stays in the graph, where shapes are inferred from it
PAGE = 4096  # bytes; a tensor that begins on one can be mapped into memory
BESIDE = "session.model_external_initializers_file_folder_path"  # weights of a model in memory
REFUSALS = tuple(  # they have no base class of their own
    getattr(onnxruntime.capi.onnxruntime_pybind11_state, name)
    for name in ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NotImplemented")
)


class Backend:
    """``onnx/<run>.onnx`` at one sigma, in a session that any number of threads may share.

    ``normals`` is the shape of the normal numbers that a row asks for, the file's input z, or ().
    """

    def __init__(
        self,
        root: Path,
        run: str,
        *,
        sigma: float,
        precision: str,
        device: str,
        calibration: Callable[[], Tensor] | None,
        prefixes: bool = False,
    ) -> None:
        """Load ``root/onnx/<run>.onnx``, a file or a folder.

        With ``prefixes``, scores are [B, k, K]: those of an ensemble's first 1, 2, …, k members.

        ``precision`` fp16 and int8 convert it (rrcm/quantize.py): another function, so ``weights``
        is then the SHA-256 of the converted model. int8 takes its scales from the noisy pixels
        [N, C, H, W] that ``calibration`` returns, once and for all: a score never depends on the
        rest of its batch, as it would with dynamic quantisation. fp32 uses no TF32.

        Raises:
            BackendError: The file, the device, the precision or its calibration is missing, or
                there are no ``prefixes``, because it is no ensemble. There is no int8 of a
                classifier that is random, nor of a folder.
        """
        if precision not in PRECISIONS:
            raise BackendError(
                f"backend onnx offers {', '.join(PRECISIONS)}, not {precision}; torch has bf16"
            )
        path = root / "onnx" / f"{run}.onnx"
        model = _read(path)
        metadata = _metadata(model, path, run)
        data = _data(path, metadata, precision) if path.is_dir() else None
        self.classes: list[str] = json.loads(metadata["classes"])
        model, ends, self.last = _chosen(model, metadata, path, precision, prefixes)
        self.device = torch.device(device)
        self.stream = (
            torch.cuda.Stream() if device == "cuda" and torch.cuda.is_available() else None
        )
        try:
            converted = _converted(model, sigma, precision, calibration, ends)
            content = converted.SerializeToString()
            found, beside = (_moved(converted, data), data.parent) if data else (content, None)
            self.session = open_session(
                found, path, device=device, stream=self.stream, beside=beside
            )
        except REFUSALS as error:
            raise BackendError(f"{path}: no ONNX file that can run: {one_line(error)}") from None
        self.weights = metadata["weights"] if precision == "fp32" else sha256(content).hexdigest()
        self.provider = self.session.get_providers()[0]
        _, *self.shape = self.session.get_outputs()[0].shape
        more = [value for value in self.session.get_inputs() if value.name == "z"]
        self.normals: tuple[int, ...] = tuple(more[0].shape[1:]) if more else ()
        if (width := self.shape[-1]) != len(self.classes):
            raise BackendError(
                f"{path}: {width} scores per image, but {len(self.classes)} classes in its metadata"
            )
        self.options = onnxruntime.RunOptions()
        self.options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def scores(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """Scores [B, K] of noisy pixels ``x`` [B, C, H, W], both float32 on ``device``.

        With normals, ``z`` [B, *normals] is needed, else it is not given. Computed on the calling
        thread; on a GPU, in the order of its current stream.
        """
        x = x.contiguous()
        z = z if z is None else z.contiguous()
        scores = torch.empty(len(x), *self.shape, device=self.device)
        binding = self.session.io_binding()  # of this call alone: threads share the session
        for bind, name, tensor in (
            (binding.bind_input, "x", x),
            (binding.bind_input, "z", z),
            (binding.bind_output, "scores", scores),
        ):
            if tensor is None:
                continue
            bind(name, self.device.type, 0, np.float32, tuple(tensor.shape), tensor.data_ptr())
        if self.stream:
            self.stream.wait_stream(torch.cuda.current_stream())
        self.session.run_with_iobinding(binding, self.options)
        if self.stream:
            torch.cuda.current_stream().wait_stream(self.stream)
        return scores[:, -1] if self.last else scores


def about(root: Path, run: str) -> dict[str, Any]:
    """Of ``root/onnx/<run>.onnx``: the ``weights`` of fp32, and the ``params`` that made it."""
    path = root / "onnx" / f"{run}.onnx"
    found = _metadata(_read(path), path, run)
    return {"weights": found["weights"], "params": json.loads(found.get("params", "{}"))}


def open_session(
    content: bytes | str,
    path: Path,
    *,
    device: str,
    stream: "torch.cuda.Stream | None" = None,
    beside: Path | None = None,
) -> onnxruntime.InferenceSession:
    """A session of a model, read from ``path``, on the calling thread or on a GPU's ``stream``.

    ``content`` is the model's bytes, of which the session keeps a copy, or a file's name. Weights
    that are not in these bytes are read from the folder ``beside``. It asks only for what can load,
    and uses no TF32.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if beside:
        options.add_session_config_entry(BESIDE, str(beside))
    providers: list[tuple[str, dict[str, str]]] = [("CPUExecutionProvider", {})]
    if device == "cuda":
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers() or not stream:
            raise BackendError("no CUDA device or provider here; `rrcm doctor` shows what there is")
        settings = {"use_tf32": "0", "user_compute_stream": str(stream.cuda_stream)}
        providers.insert(0, ("CUDAExecutionProvider", settings))
    session = onnxruntime.InferenceSession(content, options, providers=providers)
    if session.get_providers()[0] != providers[0][0]:  # it falls back without a word
        raise BackendError(f"{path}: {providers[0][0]} does not load; `rrcm doctor` shows more")
    return session


def write(model: onnx.ModelProto, path: Path) -> None:
    """Write ``model`` to a file of its own that ends in a digest of all bytes before."""
    kept = [prop for prop in model.metadata_props if prop.key != DIGEST]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    content = model.SerializeToString()
    with path.open("wb") as file:
        file.write(content)
        file.write(_ending(sha256(content).hexdigest()))


def _ending(digest: str) -> bytes:
    """What is appended to a file: parts of a protobuf message may follow each other."""
    entry = onnx.StringStringEntryProto(key=DIGEST, value=digest)
    return onnx.ModelProto(metadata_props=[entry]).SerializeToString()


def refuse_damage(content: bytes, path: Path) -> None:
    """Refuse the bytes of a file that ends in a digest, if it is not theirs.

    Raises:
        BackendError: Says how to get them back.
    """
    start = len(content) - len(_ending("0" * 64))
    body, found = memoryview(content)[: max(start, 0)], content[max(start, 0) :]
    if found[:-64] != _ending("0" * 64)[:-64]:
        return  # it has none
    if found != _ending(sha256(body).hexdigest()):
        raise BackendError(
            f"{path}: damaged: not the bytes that were exported; `dvc checkout --force` or `dvc "
            "repro` brings them back"
        )


def require_digest(model: onnx.ModelProto, path: Path) -> None:
    """Refuse a model of ours whose file, which `refuse_damage` has seen, has no digest.

    Raises:
        BackendError: Says how to make it anew.
    """
    if model.metadata_props[-1].key != DIGEST:
        raise BackendError(
            f"{path}: does not end in a digest, so that damage would not show: it is cut short, "
            "was changed, or an older version exported it; `dvc repro` exports it anew"
        )


def unload(model: onnx.ModelProto, path: Path) -> None:
    """Move the weights of ``model`` to the file ``path``, to lie beside that of the model."""
    with path.open("wb") as file:
        for tensor in model.graph.initializer:
            if (size := len(tensor.raw_data)) <= SMALL:
                continue
            file.seek(-file.tell() % PAGE, os.SEEK_CUR)
            place = {"offset": file.tell(), "length": size}
            onnx.external_data_helper.set_external_data(tensor, path.name, **place)
            file.write(tensor.raw_data)
            tensor.ClearField("raw_data")


def _read(path: Path) -> onnx.ModelProto:
    """The model; that of a folder without its weights."""
    path = path / GRAPH if path.is_dir() else path
    content = read_bytes(path, BackendError, most=LARGEST)
    try:
        refuse_damage(content, path)
        return onnx.load_model_from_string(content)
    except DecodeError as error:
        raise BackendError(f"{path}: no ONNX file that can run: {one_line(error)}") from None


def _metadata(model: onnx.ModelProto, path: Path, run: str) -> dict[str, str]:
    metadata = {prop.key: prop.value for prop in model.metadata_props}
    if "classes" not in metadata or "weights" not in metadata:
        raise BackendError(f"{path}: no metadata of ours; `dvc repro export@{run}` writes it")
    if metadata.get("run") != run:
        raise BackendError(f"{path}: exported from run {metadata.get('run')!r}, not {run!r}")
    require_digest(model, path)
    return metadata


def _data(path: Path, metadata: dict[str, str], precision: str) -> Path:
    """The file with the weights of a folder, once they are known to be those of its graph."""
    if precision == "int8":
        raise BackendError(
            f"{path}: int8 is made from a model of one file, and these are more weights than one "
            "holds; use fp32 or fp16"
        )
    return require_data(path, metadata)


def require_data(path: Path, metadata: dict[str, str]) -> Path:
    """The file with the weights of the folder ``path``, if they are as the graph's metadata say.

    Raises:
        BackendError: They are missing, or other ones; says how to get them back.
    """
    data, cure = path / DATA, f"`dvc checkout --force {path}` or `dvc repro` brings it back"
    try:
        found = sha256_of_file(data)
    except OSError as error:
        raise BackendError(f"{data}: cannot be read ({one_line(error)}); {cure}") from None
    if found != metadata.get(DATA):
        raise BackendError(f"{data}: damaged, or not of the {GRAPH} beside it; {cure}")
    return data.resolve()  # ONNX Runtime follows no link, and DVC may keep one here


def _moved(model: onnx.ModelProto, data: Path) -> bytes:
    """The bytes of ``model`` for weights in a file of the name of ``data``."""
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = data.name
    return model.SerializeToString()


def _chosen(
    model: onnx.ModelProto, metadata: dict[str, str], path: Path, precision: str, prefixes: bool
) -> tuple[onnx.ModelProto, list[str], bool]:
    """``model`` with the scores that are wanted alone, the tensors up to which it may be float16,
    and whether the scores are only the last of several.
    """
    if rule := json.loads(metadata.get("ensemble", "{}")):
        ends = [f"member_{place}" for place in range(1, rule["members"] + 1)]
        # To skip members is a branch, which rrcm/quantize.py does not know: all are asked then.
        last = not prefixes and precision != "fp32" and rule["consensus"] > 0
        return _only(model, "prefixes" if prefixes or last else "scores"), ends, last
    if prefixes:
        raise BackendError(f"{path}: no ensemble, so that there are no prefixes")
    if precision == "int8" and any(value.name == "z" for value in model.graph.input):
        raise BackendError(
            f"{path}: int8 takes its ranges from noisy images, but this classifier is random, too; "
            "use fp32 or fp16"
        )
    calls = [value.name for value in model.graph.output if value.name != "scores"]
    return (_only(model, "scores") if calls else model), calls or ["scores"], False


def _only(model: onnx.ModelProto, output: str) -> onnx.ModelProto:
    """``model`` without all that only other outputs need; ``output`` is then called scores."""
    graph, needed, kept = model.graph, {output}, []
    for node in reversed(graph.node):  # which are sorted: what a node reads comes before it
        if needed.intersection(node.output):
            needed |= _read_by(node)
            kept.insert(0, node)
    (found,) = (value for value in graph.output if value.name == output)
    if output != "scores":  # of which some may be made
        names = {"scores": "scores.own", output: "scores"}
        for node in kept:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]
        found.name = "scores"
    for field, values in (
        (graph.output, [found]),
        (graph.node, kept),
        (graph.initializer, [t for t in graph.initializer if t.name in needed]),
    ):
        values = list(values)
        del field[:]
        field.extend(values)
    return model


def _read_by(node: onnx.NodeProto) -> set[str]:
    """What a node reads, in its branches too."""
    branches = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    inner = [name for graph in branches for child in graph.node for name in _read_by(child)]
    return {*node.input, *inner}


def _converted(
    model: onnx.ModelProto,
    sigma: float,
    precision: str,
    calibration: Callable[[], Tensor] | None,
    ends: list[str],
) -> onnx.ModelProto:
    """``model`` as a function of ``x`` alone, in ``precision`` up to the tensors ``ends``."""
    (level,) = (value for value in model.graph.input if value.name == "sigma")
    model.graph.input.remove(level)  # a constant then, which ONNX Runtime folds
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.array(sigma, dtype=np.float32), "sigma")
    )
    if precision == "fp16":
        return quantize.float16(model, ends)
    if precision == "int8":
        if calibration is None:
            raise BackendError("precision int8 needs images to calibrate on, and got none")
        return quantize.int8(model, calibration().cpu().numpy())
    return model
