"""ONNX Runtime: runs the exported file, on a GPU where its CUDA libraries load, else the CPU."""

import json
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor

from rrcm.errors import BackendError


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
        return onnxruntime.InferenceSession(path, options, providers=providers)
    except onnxruntime.capi.onnxruntime_pybind11_state.Fail as error:
        raise BackendError(f"{path}: ONNX Runtime refuses it: {str(error).strip()}") from None
    except onnxruntime.capi.onnxruntime_pybind11_state.InvalidProtobuf as error:
        raise BackendError(f"{path}: not an ONNX file: {str(error).strip()}") from None
