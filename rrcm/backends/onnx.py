"""ONNX Runtime: runs the exported file, on the CPU or a GPU."""

import json
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor

from rrcm.errors import BackendError

REFUSALS = tuple(  # they have no base class of their own
    getattr(onnxruntime.capi.onnxruntime_pybind11_state, name)
    for name in ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NotImplemented")
)


class Backend:
    """``onnx/<run>.onnx`` in a session of its own."""

    def __init__(self, root: Path, run: str, *, precision: str, device: str) -> None:
        """Load ``root/onnx/<run>.onnx``; ``precision`` is that of the file, float32."""
        path = root / "onnx" / f"{run}.onnx"
        if precision != "fp32":
            raise BackendError(f"backend onnx runs {path} as exported, in fp32, not {precision}")
        self.path = path
        self.session = open_session(path, device=device)
        metadata = self.session.get_modelmeta().custom_metadata_map
        if "classes" not in metadata or "weights" not in metadata:
            raise BackendError(f"{path}: no metadata of ours; `dvc repro export@{run}` writes it")
        if metadata.get("run") != run:
            raise BackendError(f"{path}: exported from run {metadata.get('run')!r}, not {run!r}")
        self.classes: list[str] = json.loads(metadata["classes"])
        self.weights = metadata["weights"]
        self.provider = self.session.get_providers()[0]
        width = self.session.get_outputs()[0].shape[1]
        if width != len(self.classes):
            raise BackendError(
                f"{path}: {width} scores per image, but {len(self.classes)} classes in its metadata"
            )

    def scores(self, x: Tensor, sigma: float) -> Tensor:
        """Scores [B, K] of noisy pixels ``x`` [B, C, H, W]; computed on the calling thread."""
        level = torch.tensor(sigma, dtype=torch.float32).numpy()
        (scores,) = self.session.run(["scores"], {"x": x.numpy(), "sigma": level})
        return torch.from_numpy(scores)


def open_session(path: Path, *, device: str) -> onnxruntime.InferenceSession:
    """A session that runs on the calling thread, or on the GPU; asks only for what can load."""
    if not path.exists():
        raise BackendError(f"{path}: not found")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    providers = ["CPUExecutionProvider"]
    if device == "cuda":
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            raise BackendError("this ONNX Runtime has no CUDA provider; `rrcm doctor` shows more")
        providers.insert(0, "CUDAExecutionProvider")
    try:
        session = onnxruntime.InferenceSession(path, options, providers=providers)
    except REFUSALS as error:
        raise BackendError(f"{path}: no ONNX file that can run: {_one_line(error)}") from None
    if session.get_providers()[0] != providers[0]:  # it falls back without a word
        raise BackendError(f"{path}: {providers[0]} does not load; `rrcm doctor` shows more")
    return session


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
