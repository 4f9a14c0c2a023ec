"""Backend for ONNX classifiers exported by any program."""

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from google.protobuf.message import DecodeError, EncodeError, Message
from onnx.external_data_helper import ExternalDataInfo, uses_external_data
from torch import Tensor

from rrcm.core.errors import BackendError, one_line
from rrcm.core.files import read_bytes, require_file
from rrcm.core.files import sha256 as sha256_of_file
from rrcm.inference.backends.onnx import (
    DATA,
    LARGEST,
    REFUSALS,
    open_session,
    refuse_damage,
    require_data,
    require_digest,
)
from rrcm.inference.foreign._normalisation import Normalisation

FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}
BROKEN = (  # errors of onnx and ONNX Runtime on a damaged file
    *(DecodeError, EncodeError, onnx.checker.ValidationError, *REFUSALS),
    *(ValueError, TypeError, KeyError, IndexError, OverflowError, RuntimeError, OSError),
)
WEIGHTS = 2**36  # most bytes of a file of external weights
INPUT = 2**32  # most bytes of the pictures of a batch
SECONDS, LIMIT = 30, 300  # time limits per picture, and for the first batch
OPEN = "; are --channels and --size those of its training?"
PICKLES = (b"PK\x03\x04", b"\x80\x02")  # how files of torch.save begin
COLOURS = 3  # default channels, if the file leaves them open
TRAINING = "it normalises by, or drops out of, the batch at hand; export the network after eval()"


class Backend:
    """A classifier in an ONNX file, in a session that any number of threads may share.

    ``shape`` [C, H, W] is that of its pictures, ``fixed`` its batch size, or 0 for any. The file
    does not record how pictures are prepared: ``crop_pct`` and ``interpolation`` are common values.
    """

    crop_pct, interpolation = 0.875, "bicubic"
    normals = ()  # it is deterministic

    def __init__(
        self,
        path: Path,
        *,
        sigma: float,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        size: tuple[int, int] | None = None,
        channels: int | None = None,
        output: str | None = None,
        device: str = "cpu",
    ) -> None:
        """Load a file that has pictures as its one input, and scores among its outputs.

        A scalar ``sigma`` may be a further input, as in files of rrcm/inference/export.py.

        Pictures are [N, C, H, W], or [N, H, W, C] where only the last axis can be channels (1 or
        3), float32, or cast to float16 or float64. ``weights`` is the SHA-256 of the model, its
        external weights, its layout and the normalisation.

        Args:
            path: The file.
            sigma: The noise level; passed to the network if the file has this input.
            mean: Mean of each channel, for pixels in [0, 1], subtracted after the noise; default 0.
            std: Standard deviation of each channel; default 1.
            size: Height and width, if the file leaves them open.
            channels: Number of channels, if the file leaves it open; 3 by default.
            output: The name of the scores, if the file has several outputs of two axes.
            device: ``cpu`` or ``cuda``.

        Raises:
            BackendError: The file is missing, damaged, not for pictures, or in training mode.
            ConfigError: ``mean`` or ``std`` is invalid.
        """
        content, apart = _read(path)
        self.path, self.sigma, self.device = path, sigma, torch.device(device)
        self.stream = (
            torch.cuda.Stream() if device == "cuda" and torch.cuda.is_available() else None
        )
        try:
            self.session = open_session(
                content,
                path,
                device=device,
                stream=self.stream,
                beside=path.parent if apart else None,
            )
        except BROKEN as error:
            raise BackendError(f"{path}: no ONNX file that can run: {one_line(error)}") from None
        self.provider = self.session.get_providers()[0]
        self.level = self._level(self.session.get_inputs())
        inputs = [v for v in self.session.get_inputs() if v.name not in self.level]
        self._read_input(inputs, size, channels)
        self._read_output(self.session.get_outputs(), output)
        self.normalise = Normalisation(
            mean or (0.0,), std or (1.0,), channels=self.shape[0], device=device
        )
        self.classes = [str(k) for k in range(self._probe())]
        around = json.dumps([self.input, self.output, self.last, str(self.normalise)])
        around += json.dumps({"sigma": sigma}) if self.level else ""
        self.weights = sha256(content + apart + around.encode()).hexdigest()

    def _level(self, inputs: list[onnxruntime.NodeArg]) -> dict[str, np.ndarray]:
        """The input ``sigma`` by name, if the file has one."""
        if not any((v.name, v.shape, v.type) == ("sigma", [], "tensor(float)") for v in inputs):
            return {}
        return {"sigma": np.array(self.sigma, dtype=np.float32)}

    def _read_input(
        self,
        inputs: list[onnxruntime.NodeArg],
        size: tuple[int, int] | None,
        channels: int | None,
    ) -> None:
        """Read the name, type, layout and shape of the only input."""
        if len(inputs) != 1:
            names = ", ".join(value.name for value in inputs) or "none"
            raise BackendError(f"{self.path}: expected one input, a picture, got {names}")
        (value,) = inputs
        said = f"{self.path}: input {value.name} is {value.type} {value.shape}"
        if value.type not in FLOATS or len(value.shape) != 4:
            raise BackendError(f"{said}, not a batch of pictures [N, C, H, W] of floats")
        batch, *sides = (side if isinstance(side, int) and side > 0 else 0 for side in value.shape)
        self.last = sides[0] not in (1, 3) and sides[2] in (1, 3)  # channels are the last axis
        known, height, width = (sides[2], *sides[:2]) if self.last else sides
        if known and channels not in (None, known):
            raise BackendError(f"{said}, and was asked for {channels} channels with --channels")
        if not (height and width) and size is None:
            raise BackendError(f"{said}, of any size; give the one it was trained at with --size")
        wanted = size or (height, width)
        if height not in (0, wanted[0]) or width not in (0, wanted[1]):
            raise BackendError(f"{said}, and was asked for {wanted[0]} x {wanted[1]} with --size")
        self.input, self.dtype, self.fixed = value.name, FLOATS[value.type], batch
        self.shape = (known or channels or COLOURS, *wanted)
        self.open = not (known and height and width)

    def _read_output(self, outputs: list[onnxruntime.NodeArg], name: str | None) -> None:
        """Find the scores: the output ``name``, or by default the only one of two axes."""
        listed = ", ".join(f"{value.name} {value.shape}" for value in outputs)
        if name is None:
            scores = [value.name for value in outputs if len(value.shape or ()) == 2]
        else:
            scores = [value.name for value in outputs if value.name == name]
        if len(scores) != 1:
            wanted = "one output [N, K], or its name with --output" if name is None else repr(name)
            raise BackendError(f"{self.path}: expected {wanted} among the outputs {listed}")
        (self.output,) = scores

    def _probe(self) -> int:
        """The number of classes, by classifying a grey picture; the first run may fail or hang."""
        rows = self.fixed or 2
        taken = "does not run at {} x {} x {}".format(*self.shape)
        if (size := 4 * rows * math.prod(self.shape)) > INPUT:
            raise BackendError(
                f"{self.path}: {taken}: {rows} such pictures are {size:,} bytes, more than the "
                f"{INPUT:,} of a batch"
            )
        grey = torch.full((rows, *self.shape), 0.5, device=self.device)
        limit = min(SECONDS * rows, LIMIT)
        try:
            with _ended(after=limit) as options:
                scores = self.scores(grey, options)
        except BROKEN as error:
            why = f"{one_line(error)}{OPEN if self.open else ''}"
            if options.terminate:
                why = f"no scores of {rows} pictures in {limit:g} s; does it loop for ever?"
            raise BackendError(f"{self.path}: {taken}: {why}") from None
        if scores.ndim != 2 or len(scores) != len(grey) or scores.shape[1] < 2:
            raise BackendError(
                f"{self.path}: {self.output} of {len(grey)} pictures is {list(scores.shape)}, not "
                "the scores of two classes or more for each"
            )
        return scores.shape[1]

    def scores(self, x: Tensor, options: onnxruntime.RunOptions | None = None) -> Tensor:
        """Scores [B, K] of noisy pixels ``x`` [B, C, H, W], both float32 on ``device``.

        Computed on the calling thread; on a GPU, in the order of its current stream. ``options``
        apply to this run only.
        """
        x = self.normalise(x)
        x = (x.permute(0, 2, 3, 1) if self.last else x).contiguous()
        if self.device.type == "cpu":
            inputs = {self.input: x.numpy().astype(self.dtype)} | self.level
            (scores,) = self.session.run([self.output], inputs, options)
            return torch.from_numpy(scores.astype(np.float32, copy=False))
        x = x.to(getattr(torch, np.dtype(self.dtype).name))
        binding = self.session.io_binding()  # one per call, as threads share the session
        shape, kind = tuple(x.shape), self.device.type
        binding.bind_input(self.input, kind, 0, self.dtype, shape, x.data_ptr())
        for name, value in self.level.items():
            binding.bind_cpu_input(name, value)
        binding.bind_output(self.output, kind)
        torch.cuda.current_stream().synchronize()  # the session has a stream of its own
        self.session.run_with_iobinding(binding, options)
        (scores,) = binding.get_outputs()
        return torch.from_numpy(scores.numpy().astype(np.float32, copy=False)).to(self.device)


@contextmanager
def _ended(*, after: float) -> Iterator[onnxruntime.RunOptions]:
    """Run options that end a run before its next node, once ``after`` seconds have passed."""
    options = onnxruntime.RunOptions()
    options.log_severity_level = 4  # the message is in the error
    late = threading.Timer(after, setattr, (options, "terminate", True))
    late.start()
    try:
        yield options
    finally:
        late.cancel()


def _read(path: Path) -> tuple[bytes, bytes]:
    """The model's bytes, and the hashes of its external weights if these do not fit into them."""
    folder, apart = path.parent, b""
    if path.is_dir():
        raise BackendError(f"{path}: a folder; name the .onnx file in it")
    raw = read_bytes(path, BackendError, most=LARGEST)
    if raw.startswith(PICKLES):
        raise BackendError(
            f"{path}: a file of PyTorch, not ONNX: `torch.onnx.export` writes one of a network, "
            "--timm NAME --weights FILE takes weights, rrcm.smooth(network, ...) networks"
        )
    try:
        model = onnx.load_model_from_string(raw)
        _refuse_damage(model, raw, path)
        beside = [ExternalDataInfo(t) for t in _tensors(model) if uses_external_data(t)]
        for file in sorted({one.location for one in beside}):
            _require_beside(folder / file, path)
        sizes = [one.length or (folder / one.location).stat().st_size for one in beside]
        if path.stat().st_size + sum(sizes) < LARGEST:
            onnx.load_external_data_for_model(model, str(folder))  # refuses other folders
            onnx.checker.check_model(model)
        else:
            onnx.checker.check_model(path)  # also refuses other folders
            files = sorted({one.location for one in beside})
            apart = "".join(sha256_of_file(folder / file) for file in files).encode()
        content = model.SerializeToString(deterministic=True)
        _refuse_training(model.graph, path)
    except BROKEN as error:
        raise BackendError(f"{path}: no ONNX file that can run: {one_line(error)}") from None
    return content, apart


def _refuse_damage(model: onnx.ModelProto, content: bytes, path: Path) -> None:
    """Refuse a damaged file of rrcm/inference/export.py, by its digests."""
    refuse_damage(content, path)
    about = {prop.key: prop.value for prop in model.metadata_props}
    if {"run", "weights"} <= about.keys():
        require_digest(model, path)
        if DATA in about:
            require_data(path.parent, about)


def _require_beside(file: Path, path: Path) -> None:
    try:
        require_file(file, BackendError, most=WEIGHTS)
    except BackendError as error:
        raise BackendError(f"{path}: its weights are not beside it: {error}") from None


def _tensors(message: Message) -> Iterator[onnx.TensorProto]:
    """All tensors of a message, at any depth."""
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for child in value if field.is_repeated else [value]:
                yield from _tensors(child)


def _refuse_training(graph: onnx.GraphProto, path: Path) -> None:
    """Refuse nodes in training mode, including those in subgraphs."""
    constants = {value.name: value for value in graph.initializer}
    for node in graph.node:
        known = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "Constant" and "value" in known:
            constants[node.output[0]] = known["value"].t
        mode = known["training_mode"].i if "training_mode" in known else 0
        if node.op_type == "BatchNormalization" and len([*filter(None, node.output)]) > 1:
            mode = 1
        if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:
            flag = constants.get(node.input[2])
            mode = flag is None or bool(onnx.numpy_helper.to_array(flag, str(path.parent)).any())
        if mode:
            raise BackendError(
                f"{path}: {node.op_type} {node.name} is in training mode: {TRAINING}"
            )
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                _refuse_training(inner, path)
