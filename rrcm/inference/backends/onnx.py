"""Backend that runs exported classifiers with ONNX Runtime, on the CPU or a GPU.

An export is a file, or for large networks a folder with a graph and its weights
(rrcm/inference/export.py). For a folder, only the graph is read here; ONNX Runtime itself reads the
weights.

The last metadata entry of a file is the SHA-256 of all bytes before it, and the metadata of a graph
contain the SHA-256 of its weights, so that a damaged file is refused.
"""

import json
import os
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
import onnxruntime
import torch
from google.protobuf.message import DecodeError
from torch import Tensor

from rrcm.core.errors import BackendError, one_line
from rrcm.core.files import read_bytes
from rrcm.core.files import sha256 as sha256_of_file
from rrcm.inference import backend, runtime
from rrcm.models.trained import quantize

PRECISIONS = ("fp32", "fp16", "int8")
AUTO = {"cpu": ("fp32", "int8"), "cuda": ("fp32", "fp16")}  # what --precision auto may choose
GRAPH, DATA = "model.onnx", "weights.data"  # files of a folder; DATA is also its SHA-256's key
LARGEST = 2 * 10**9  # most bytes of a file, onnx's limit; that of protobuf is a little larger
DIGEST = "rrcm-sha256"  # key of the last metadata entry
SMALL = 1024  # bytes; smaller tensors stay in the graph, because shapes are inferred from them
PAGE = 4096  # bytes; a tensor aligned to this can be memory-mapped
BESIDE = "session.model_external_initializers_file_folder_path"  # folder of external weights
REFUSALS = tuple(  # ONNX Runtime's errors have no common base class
    getattr(onnxruntime.capi.onnxruntime_pybind11_state, name)
    for name in ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NotImplemented")
)


class Reopened:
    """A copy, or what is unpickled in another process, opens its file again: a session is of one.

    Raises:
        BackendError: In the copy: the file has changed, or is not there.
    """

    weights: str
    classes: list[str]
    _given: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Keep the arguments."""
        self = super().__new__(cls)
        self._given = args, kwargs
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """How to open it again."""
        args, kwargs = self._given
        return partial(type(self), *args, **kwargs), (), (self.weights, self.classes)

    def __setstate__(self, state: tuple[str, list[str]]) -> None:
        """Take over the classes, which may have been named since it was opened."""
        weights, self.classes = state
        if weights != self.weights:
            raise BackendError(f"{self._given[0][0]}: is another file than when it was opened")


class Backend(Reopened, backend.Backend):
    """``onnx/<run>.onnx`` at one sigma, in a session that any number of threads may share.

    A random classifier takes its normal numbers as the file's input z.
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
    ) -> None:
        """Load ``root/onnx/<run>.onnx``, a file or a folder.

        ``precision`` fp16 and int8 convert it (rrcm/models/trained/quantize.py) to a different
        function, so ``weights`` is then the SHA-256 of the converted model. int8 takes fixed scales
        from the noisy pixels [N, C, H, W] that ``calibration`` returns: a score never depends on
        the rest of its batch, as it would with dynamic quantisation. fp32 uses no TF32.

        Raises:
            BackendError: The file, the device, the precision or its calibration is missing; or int8
                is requested for a random classifier or a folder.
        """
        if precision not in PRECISIONS:
            raise BackendError(
                f"backend onnx offers {', '.join(PRECISIONS)}, not {precision}; torch has bf16"
            )
        path = root / "onnx" / f"{run}.onnx"
        model, metadata = _read(path, run)
        if precision == "int8":
            _refuse_int8(model, path)
        data = require_data(path, metadata) if path.is_dir() else None
        self.classes: list[str] = json.loads(metadata["classes"])
        self.sigma, self.device = sigma, torch.device(device)
        try:
            converted = _converted(model, sigma, precision, calibration)
            content = converted.SerializeToString()
            graph, beside = (_moved(converted, data), data.parent) if data else (content, None)
            self.session, self.stream = open_session(graph, path, device=device, beside=beside)
        except REFUSALS as error:
            raise BackendError(f"{path}: no ONNX file that can run: {one_line(error)}") from None
        self.weights = metadata["weights"] if precision == "fp32" else sha256(content).hexdigest()
        self.provider = self.session.get_providers()[0]
        if precision == "int8":  # which saturates by the processor; others differ in last digits
            self.provider = described(self.session, self.device)
        _, self.width = self.session.get_outputs()[0].shape
        more = [value for value in self.session.get_inputs() if value.name == "z"]
        self.normals = tuple(more[0].shape[1:]) if more else ()
        if self.width != len(self.classes):
            raise BackendError(
                f"{path}: {self.width} scores per image, but {len(self.classes)} classes in its "
                "metadata"
            )
        self.options = onnxruntime.RunOptions()
        self.options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def scores(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """Computed on the calling thread."""
        x = x.contiguous()
        z = z if z is None else z.contiguous()
        scores = torch.empty(len(x), self.width, device=self.device)
        binding = self.session.io_binding()  # one per call, as threads share the session
        for bind, name, tensor in (
            (binding.bind_input, "x", x),
            (binding.bind_input, "z", z),
            (binding.bind_output, "scores", scores),
        ):
            if tensor is not None:
                place = tuple(tensor.shape), tensor.data_ptr()
                bind(name, self.device.type, 0, np.float32, *place)
        if self.stream:
            self.stream.wait_stream(torch.cuda.current_stream())
        self.session.run_with_iobinding(binding, self.options)
        if self.stream:
            torch.cuda.current_stream().wait_stream(self.stream)
        return scores


def about(root: Path, run: str) -> dict[str, Any]:
    """The fp32 ``weights`` digest of ``root/onnx/<run>.onnx``, and the ``params`` that made it."""
    _, metadata = _read(root / "onnx" / f"{run}.onnx", run)
    params = json.loads(metadata.get("params", "{}"))
    return {"weights": metadata["weights"], "params": params}


def described(session: onnxruntime.InferenceSession, device: torch.device) -> str:
    """A session's provider, its version, and the processor or GPU that it runs on."""
    return runtime.named(f"{session.get_providers()[0]} {onnxruntime.__version__}", device)


def open_session(
    content: bytes | str, path: Path, *, device: str, beside: Path | None = None
) -> "tuple[onnxruntime.InferenceSession, torch.cuda.Stream | None]":
    """A session that runs a model, without TF32, on the calling thread or on this GPU's stream.

    ``content`` is the model's bytes, which the session copies, or a file name; ``path`` is named in
    errors. External weights are read from the folder ``beside``.

    Raises:
        BackendError: There is no CUDA, or ONNX Runtime falls back to the CPU.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if beside:
        options.add_session_config_entry(BESIDE, str(beside))
    providers: list[tuple[str, dict[str, str]]] = [("CPUExecutionProvider", {})]
    stream = None
    if device == "cuda":
        known = onnxruntime.get_available_providers()
        if "CUDAExecutionProvider" not in known or not torch.cuda.is_available():
            raise BackendError("no CUDA device or provider here; `rrcm doctor` shows what there is")
        stream = torch.cuda.Stream()
        # By default ONNX Runtime times the algorithms of each convolution when a session starts,
        # and two sessions may choose two that round differently. cuDNN's heuristic depends on
        # shapes and GPU only, so a sampling that is resumed has the function that it began with.
        cuda = {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}
        cuda["user_compute_stream"] = str(stream.cuda_stream)
        providers.insert(0, ("CUDAExecutionProvider", cuda))
    session = onnxruntime.InferenceSession(content, options, providers=providers)
    if session.get_providers()[0] != providers[0][0]:  # it falls back silently
        raise BackendError(f"{path}: {providers[0][0]} does not load; `rrcm doctor` shows more")
    return session, stream


def write(model: onnx.ModelProto, path: Path, metadata: dict[str, str]) -> None:
    """Write ``model`` with ``metadata`` to a file that ends in the SHA-256 of all bytes before."""
    onnx.helper.set_model_props(model, {k: v for k, v in metadata.items() if k != DIGEST})
    content = model.SerializeToString()
    with path.open("wb") as file:
        file.write(content)
        file.write(_ending(sha256(content).hexdigest()))


def _ending(digest: str) -> bytes:
    """The bytes that append ``digest`` to a file; concatenated protobuf messages parse as one."""
    entry = onnx.StringStringEntryProto(key=DIGEST, value=digest)
    return onnx.ModelProto(metadata_props=[entry]).SerializeToString()


def undamaged(content: bytes, path: Path) -> tuple[onnx.ModelProto, dict[str, str]]:
    """The model in the bytes of the file ``path``, and its metadata; one of ours is as exported.

    Raises:
        BackendError: A digest does not match, or it is of ours and has none; names the command that
            restores the file.
        DecodeError: It is no ONNX file.
    """
    start = max(len(content) - len(_ending("0" * 64)), 0)
    body, ending = memoryview(content)[:start], content[start:]
    has_digest = ending[:-64] == _ending("0" * 64)[:-64]
    if has_digest and ending != _ending(sha256(body).hexdigest()):
        raise BackendError(
            f"{path}: damaged: not the bytes that were exported; `rrcm repro` exports it anew"
        )
    model = onnx.load_model_from_string(content)
    metadata = {prop.key: prop.value for prop in model.metadata_props}
    if {"run", "weights"} <= metadata.keys() and not has_digest:
        raise BackendError(
            f"{path}: does not end in a digest, so that damage would not show: it is cut short "
            "or was changed; `rrcm repro` exports it anew"
        )
    return model, metadata


def unload(model: onnx.ModelProto, path: Path) -> None:
    """Move the weights of ``model`` to the file ``path``, in the folder of the model's own file."""
    with path.open("wb") as file:
        for tensor in model.graph.initializer:
            if (size := len(tensor.raw_data)) <= SMALL:
                continue
            file.seek(-file.tell() % PAGE, os.SEEK_CUR)
            onnx.external_data_helper.set_external_data(
                tensor, path.name, offset=file.tell(), length=size
            )
            file.write(tensor.raw_data)
            tensor.ClearField("raw_data")


def _read(path: Path, run: str) -> tuple[onnx.ModelProto, dict[str, str]]:
    """The model of a file, or the graph of a folder without weights, and its metadata."""
    graph = path / GRAPH if path.is_dir() else path
    content = read_bytes(graph, BackendError, most=LARGEST)
    try:
        model, metadata = undamaged(content, graph)
    except DecodeError as error:
        raise BackendError(f"{graph}: no ONNX file that can run: {one_line(error)}") from None
    if "classes" not in metadata or "weights" not in metadata:
        raise BackendError(f"{path}: no metadata of ours; `rrcm repro export@{run}` writes it")
    if metadata.get("run") != run:
        raise BackendError(f"{path}: exported from run {metadata.get('run')!r}, not {run!r}")
    return model, metadata


def _refuse_int8(model: onnx.ModelProto, path: Path) -> None:
    if path.is_dir():
        raise BackendError(
            f"{path}: int8 is made from a model of one file, and these are more weights than one "
            "holds; use fp32 or fp16"
        )
    if any(value.name == "z" for value in model.graph.input):
        raise BackendError(
            f"{path}: int8 takes its ranges from noisy images, but this classifier is random, too; "
            "use fp32 or fp16"
        )


def require_data(path: Path, metadata: dict[str, str]) -> Path:
    """The weights file of the folder ``path``, checked against the digest in ``metadata``.

    Raises:
        BackendError: It is missing or differs; names the command that restores it.
    """
    data, remedy = path / DATA, "`rrcm repro` exports it anew"
    try:
        digest = sha256_of_file(data)
    except OSError as error:
        raise BackendError(f"{data}: cannot be read ({one_line(error)}); {remedy}") from None
    if digest != metadata.get(DATA):
        raise BackendError(f"{data}: damaged, or not of the {GRAPH} beside it; {remedy}")
    return data.resolve()  # ONNX Runtime follows no link, and DVC may keep one here


def _moved(model: onnx.ModelProto, data: Path) -> bytes:
    """The bytes of ``model``, with its external weights in a file named as ``data``."""
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = data.name
    return model.SerializeToString()


def _converted(
    model: onnx.ModelProto, sigma: float, precision: str, calibration: Callable[[], Tensor] | None
) -> onnx.ModelProto:
    """``model`` with sigma as a constant and ``scores`` alone, in ``precision``.

    The scores that an ensemble or purified classifier combines may be float16; the combination
    stays float32.
    """
    combined = [value for value in model.graph.output if value.name != "scores"]
    for value in combined:
        model.graph.output.remove(value)
    (level,) = (value for value in model.graph.input if value.name == "sigma")
    model.graph.input.remove(level)  # becomes a constant, which ONNX Runtime folds
    if any(level.name in node.input for node in model.graph.node):  # else it warns
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(np.array(sigma, dtype=np.float32), level.name)
        )
    if precision == "fp16":
        return quantize.float16(model, [value.name for value in combined] or ["scores"])
    if precision == "int8":
        if calibration is None:
            raise BackendError("precision int8 needs images to calibrate on, and got none")
        return quantize.int8(model, calibration().cpu().numpy())
    return model
