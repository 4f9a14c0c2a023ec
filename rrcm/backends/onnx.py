"""ONNX Runtime: runs the exported file, on the CPU or a GPU."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from google.protobuf.message import DecodeError
from torch import Tensor

from rrcm import quantize
from rrcm.errors import BackendError, one_line

PRECISIONS = ("fp32", "fp16", "int8")
REFUSALS = tuple(  # they have no base class of their own
    getattr(onnxruntime.capi.onnxruntime_pybind11_state, name)
    for name in ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NotImplemented")
)


class Backend:
    """``onnx/<run>.onnx`` at one sigma, in a session that any number of threads may share."""

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
        """Load ``root/onnx/<run>.onnx``.

        ``precision`` fp16 and int8 convert it (rrcm/quantize.py): another function, so ``weights``
        is then the SHA-256 of the converted model. int8 takes its scales from the noisy pixels
        [N, C, H, W] that ``calibration`` returns, once and for all: a score never depends on the
        rest of its batch, as it would with dynamic quantisation. fp32 uses no TF32.

        Raises:
            BackendError: The file, the device, the precision or its calibration is missing.
        """
        if precision not in PRECISIONS:
            raise BackendError(
                f"backend onnx offers {', '.join(PRECISIONS)}, not {precision}; torch has bf16"
            )
        path = root / "onnx" / f"{run}.onnx"
        model = _read(path)
        metadata = {prop.key: prop.value for prop in model.metadata_props}
        if "classes" not in metadata or "weights" not in metadata:
            raise BackendError(f"{path}: no metadata of ours; `dvc repro export@{run}` writes it")
        if metadata.get("run") != run:
            raise BackendError(f"{path}: exported from run {metadata.get('run')!r}, not {run!r}")
        self.classes: list[str] = json.loads(metadata["classes"])
        self.device = torch.device(device)
        self.stream = (
            torch.cuda.Stream() if device == "cuda" and torch.cuda.is_available() else None
        )
        try:
            content = _converted(model, sigma, precision, calibration).SerializeToString()
            self.session = open_session(content, path, device=device, stream=self.stream)
        except REFUSALS as error:
            raise BackendError(f"{path}: no ONNX file that can run: {one_line(error)}") from None
        self.weights = metadata["weights"] if precision == "fp32" else sha256(content).hexdigest()
        self.provider = self.session.get_providers()[0]
        width = self.session.get_outputs()[0].shape[1]
        if width != len(self.classes):
            raise BackendError(
                f"{path}: {width} scores per image, but {len(self.classes)} classes in its metadata"
            )
        self.options = onnxruntime.RunOptions()
        self.options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def scores(self, x: Tensor) -> Tensor:
        """Scores [B, K] of noisy pixels ``x`` [B, C, H, W], both float32 on ``device``.

        Computed on the calling thread; on a GPU, in the order of its current stream.
        """
        x = x.contiguous()
        scores = torch.empty(len(x), len(self.classes), device=self.device)
        binding = self.session.io_binding()  # of this call alone: threads share the session
        for bind, name, tensor in (
            (binding.bind_input, "x", x),
            (binding.bind_output, "scores", scores),
        ):
            bind(name, self.device.type, 0, np.float32, tuple(tensor.shape), tensor.data_ptr())
        if self.stream:
            self.stream.wait_stream(torch.cuda.current_stream())
        self.session.run_with_iobinding(binding, self.options)
        if self.stream:
            torch.cuda.current_stream().wait_stream(self.stream)
        return scores


def open_session(
    content: bytes | str, path: Path, *, device: str, stream: "torch.cuda.Stream | None" = None
) -> onnxruntime.InferenceSession:
    """A session of a model, read from ``path``, on the calling thread or on a GPU's ``stream``.

    ``content`` is the model's bytes, of which the session keeps a copy, or a file's name. It asks
    only for what can load, and uses no TF32.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
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


def _read(path: Path) -> onnx.ModelProto:
    try:
        return onnx.load(path)
    except FileNotFoundError:
        raise BackendError(f"{path}: not found") from None
    except DecodeError as error:
        raise BackendError(f"{path}: no ONNX file that can run: {one_line(error)}") from None


def _converted(
    model: onnx.ModelProto,
    sigma: float,
    precision: str,
    calibration: Callable[[], Tensor] | None,
) -> onnx.ModelProto:
    """``model`` as a function of ``x`` alone, in ``precision``."""
    (level,) = (value for value in model.graph.input if value.name == "sigma")
    model.graph.input.remove(level)  # a constant then, which ONNX Runtime folds
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.array(sigma, dtype=np.float32), "sigma")
    )
    if precision == "fp16":
        return quantize.float16(model)
    if precision == "int8":
        if calibration is None:
            raise BackendError("precision int8 needs images to calibrate on, and got none")
        return quantize.int8(model, calibration().cpu().numpy())
    return model
