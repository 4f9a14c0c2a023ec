"""Backend for ONNX classifiers exported by any program."""

import itertools
import json
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor

from rrcm.config.foreign import Foreign
from rrcm.core.errors import BackendError, one_line
from rrcm.core.labels import NO_CLASS
from rrcm.data.splits.pictures import Fit
from rrcm.inference import backend
from rrcm.inference.backends.onnx import Reopened, described, open_session
from rrcm.inference.foreign import _onnx_file, _scores
from rrcm.inference.foreign._normalisation import Channels, Normalisation
from rrcm.inference.foreign._onnx_file import BROKEN

TYPES = {  # of pictures
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
}
INPUT = 2**32  # most bytes of the pictures of a batch
ROWS = (2, 1)  # batches that are tried
SECONDS, LIMIT = 30, 300  # time limits per picture, and for the first batch
OPEN = "; are --channels and --size those of its training?"
DOUBLE = "; ONNX Runtime has few operators in float64: export the network in float32"
COLOURS = 3  # default channels, if the file leaves them open
WHITE = 255  # of uint8 pixels
RANGES = {  # of pixels, as the metadata of ONNX name them: mean and std that make them of [0, 1]
    "nominalrange_0_255": ((0.0,), (1 / WHITE,)),
    "nominalrange_16_235": ((-16 / 219,), (1 / 219,)),
    "normalized_1_1": ((0.5,), (0.5,)),
    "normalized_0_1": (None, None),
}


class Backend(Reopened, backend.Backend):
    """A classifier in an ONNX file, in a session that any number of threads may share.

    The file does not record the size and crop of pictures: ``fit``, which brings them to its
    ``shape`` [C, H, W], has common values, and ``natural`` is the order of classes in folders
    (`image_folder.folder`). The range of pixels is that of its metadata, if these name one.
    """

    natural = False

    def __init__(self, foreign: Foreign, *, device: str = "cpu") -> None:
        """Load a file that has pictures as its one input, and scores among its outputs.

        A scalar ``sigma`` may be a further input, as in files of rrcm/inference/export.py.

        Pictures are [N, C, H, W], or [N, H, W, C] where only the last axis can be channels (1 or
        3) or only this layout runs; float32, or cast to float16 or float64; or uint8, to which
        normalised pixels are rounded and cut. Scores are outputs that `_scores.of_classes` takes.
        ``precision`` is the lowest of its tensors. ``weights`` is the SHA-256 of the model, its
        external weights, its layout and the normalisation.

        ``size`` and ``channels``, 3 by default, are for files that leave them open, ``output`` for
        one of which several outputs may be scores, ``classes`` for one that gives class numbers
        instead of scores, and ``batch`` is tried where other batches do not run. ``std`` is 1/255
        by default for uint8 pixels.

        Raises:
            BackendError: The file is missing, damaged, or not for pictures.
            ConfigError: ``mean`` or ``std`` is invalid.
        """
        path, sigma, count_nan = Path(foreign.source), foreign.sigma, foreign.count_nan
        file = _onnx_file.read(path)
        self.path, self.sigma, self.device = path, sigma, torch.device(device)
        self.precision, self.numbers = _onnx_file.precision(file.model), foreign.outputs
        self.count_nan = count_nan
        try:
            self.session, self.stream = open_session(
                file.content, path, device=device, beside=file.beside
            )
        except BROKEN as error:
            why = one_line(error) + (DOUBLE if self.precision == "fp64" else "")
            raise BackendError(f"{path}: no ONNX file that can run: {why}") from None
        self.provider = described(self.session, self.device)
        inputs = self.session.get_inputs()
        self.level: dict[str, np.ndarray] = {}
        if any((v.name, v.shape, v.type) == ("sigma", [], "tensor(float)") for v in inputs):
            self.level["sigma"] = np.array(sigma, dtype=np.float32)
        inputs = [v for v in inputs if v.name not in self.level]
        self._read_input(inputs, foreign.size, foreign.channels)
        self.fit = Fit(shape=self.shape, resize="crop", keep=True)
        self._read_output(self.session.get_outputs(), foreign.output)
        self.boundary = _onnx_file.boundary(file.model, self.output)
        mean, std = self._statistics(foreign, file.model)
        self.normalise = Normalisation(mean, std, channels=self.shape[0], device=device)
        if self.dtype is np.uint8:
            ends = torch.arange(2.0, device=device).expand(1, self.shape[0], 1, 2)  # black, white
            black, white = (value.item() for value in self.normalise(ends).aminmax())
            if not (black > -1 and WHITE / 2 < white < WHITE + 1):
                raise BackendError(
                    f"{path}: takes uint8, of 0 to {WHITE}, and pixels would be {black:.3g} to "
                    f"{white:.3g}; give --mean 0 --std {1 / WHITE:.6g}"
                )
        known = () if foreign.batch is None else (foreign.batch,)
        outputs = self._probe((*known, *_onnx_file.batches(file.model))) - count_nan
        if self.fixed != 1:
            self.combines = _onnx_file.combines(file.model, self.input, batch=self.fixed)
        self.classes = [*map(str, range(outputs)), *[NO_CLASS] * count_nan]
        around = json.dumps([self.input, self.output, self.last, str(self.normalise)])
        around += json.dumps({"sigma": sigma}) if self.level else ""
        self.weights = sha256(file.identity + around.encode()).hexdigest()

    def _statistics(self, foreign: Foreign, model: onnx.ModelProto) -> tuple[Channels, Channels]:
        """The mean and std that are given, or else make pixels what the file says, or uint8."""
        said = {one.key.lower(): one.value.lower() for one in model.metadata_props}
        if said.get("image.bitmappixelformat", "").startswith("bgr"):
            raise BackendError(
                f"{self.path}: its metadata say that blue comes first; turn its channels around, "
                "so that it takes RGB"
            )
        mean, std = foreign.mean, foreign.std or ((1 / WHITE,) if self.dtype is np.uint8 else None)
        spoken = said.get("image.nominalpixelrange")
        if spoken is not None and foreign.mean is foreign.std is None:
            if spoken not in RANGES:
                raise BackendError(
                    f"{self.path}: its metadata name the unknown range {spoken!r} of pixels; give "
                    "--mean and --std"
                )
            mean, std = RANGES[spoken]
            self.notes += (f"{self.path}: pixels are of {spoken}, as its metadata say",)
        return mean, std

    def _read_input(
        self, inputs: list[onnxruntime.NodeArg], size: tuple[int, int] | None, channels: int | None
    ) -> None:
        """Read the name, type, layout and shape of the only input."""
        if len(inputs) != 1:
            names = ", ".join(value.name for value in inputs) or "none"
            raise BackendError(f"{self.path}: expected one input, a picture, got {names}")
        (value,) = inputs
        said = f"{self.path}: input {value.name} is {value.type} {value.shape}"
        if value.type not in TYPES or len(value.shape) != 4:
            raise BackendError(f"{said}, not a batch of pictures [N, C, H, W] of floats or uint8")
        batch, *sides = (side if isinstance(side, int) and side > 0 else 0 for side in value.shape)
        self.last = sides[0] not in (1, 3) and (  # channels are the last axis
            sides[2] in (1, 3) or (0 < sides[0] and 0 < sides[1] and not sides[2])
        )
        self.layouts = (self.last,) if any(sides) else (False, True)  # in which it may run
        known, height, width = (sides[2], *sides[:2]) if self.last else sides
        if known and channels not in (None, known):
            raise BackendError(f"{said}, and was asked for {channels} channels with --channels")
        if not (height and width) and size is None:
            raise BackendError(f"{said}, of any size; give the one it was trained at with --size")
        wanted = size or (height, width)
        if height not in (0, wanted[0]) or width not in (0, wanted[1]):
            raise BackendError(f"{said}, and was asked for {wanted[0]} x {wanted[1]} with --size")
        self.input, self.dtype, self.fixed = value.name, TYPES[value.type], batch
        self.shape = (known or channels or COLOURS, *wanted)
        self.open = not (known and height and width)

    def _read_output(self, outputs: list[onnxruntime.NodeArg], name: str | None) -> None:
        """Find the scores: the output ``name``, or by default the only one that may be scores."""
        listed = ", ".join(f"{value.name} {value.shape}" for value in outputs)
        if name is None:
            fit = [one for one in outputs if len(outputs) == 1 or _may_be_scores(one.shape or ())]
        else:
            fit = [one for one in outputs if one.name == name]
        if len(fit) != 1:
            wanted = repr(name) if name else "one output [N, K], or its name with --output,"
            raise BackendError(f"{self.path}: expected {wanted} among the outputs {listed}")
        self.output = fit[0].name

    def _probe(self, known: tuple[int, ...]) -> int:
        """The number of classes, by classifying grey pictures, in the first of the ways that runs.

        A reshape inside may fix the batch, at 1 or one of those that are ``known``, and axes
        without numbers leave the layout open.
        """
        failures = []
        tried = (*ROWS[known[:1] == (1,) :], *known)  # one at a time also where others run
        batches = (self.fixed,) if self.fixed else tuple(dict.fromkeys(tried))
        for rows, last in itertools.product(batches, self.layouts):
            self.last = last
            try:
                classes = self._tried(rows)
            except BackendError as error:
                failures.append(error)
                continue
            self.fixed = self.fixed if rows == ROWS[0] else rows
            self._note_layout(rows)
            return classes
        if self.fixed:
            raise failures[0]
        raise BackendError(
            f"{failures[0]}; batches of {', '.join(map(str, batches))} were tried: if it is made "
            "for another, give that by --batch-size"
        )

    def _note_layout(self, rows: int) -> None:
        """Say which layout was taken if the file leaves it open and both run."""
        if self.last is self.layouts[-1] or self.shape[0] == 1:  # in which both are the same
            return
        self.last = self.layouts[-1]
        with suppress(BackendError):
            self._tried(rows)
            self.notes += (
                f"{self.path}: its axes have no numbers: pictures are passed as [N, C, H, W], and "
                "[N, H, W, C] runs, too; export it with the number of channels to tell",
            )
        self.last = self.layouts[0]

    def _tried(self, rows: int) -> int:
        """The number of classes, by classifying ``rows`` pictures; this may fail or hang."""
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
                answer = self.scores(grey, options=options)
        except BROKEN as error:
            why = f"{one_line(error)}{OPEN if self.open else ''}"
            if options.terminate:
                why = f"no scores of {rows} pictures in {limit:g} s; does it loop for ever?"
            raise BackendError(f"{self.path}: {taken}: {why}") from None
        if answer.ndim != 2 or len(answer) != rows or answer.shape[1] < 2 + bool(self.count_nan):
            raise BackendError(
                f"{self.path}: {self.output} of {rows} pictures is {list(answer.shape)}, not the "
                "scores of two classes or more for each"
            )
        return answer.shape[1]

    def scores(
        self, x: Tensor, z: Tensor | None = None, options: onnxruntime.RunOptions | None = None
    ) -> Tensor:
        """Computed on the calling thread.

        Raises:
            BackendError: B is not the ``fixed`` batch.
        """
        output = self._run(x, options)
        scores = _scores.of_classes(
            output, rows=len(x), classes=self.numbers, boundary=self.boundary
        )
        return _scores.with_no_class(scores) if self.count_nan and scores.ndim == 2 else scores

    def _run(self, x: Tensor, options: onnxruntime.RunOptions | None) -> Tensor:
        """The output for noisy pixels, as it is in the file."""
        if self.fixed and len(x) != self.fixed:
            raise BackendError(
                f"batch_size: {self.path} takes batches of {self.fixed} pictures, got {len(x)}"
            )
        x = self.normalise(x)
        x = (x.permute(0, 2, 3, 1) if self.last else x).contiguous()
        if self.dtype is np.uint8:
            x = x.round().clamp(0, WHITE)
        if self.device.type == "cpu":
            inputs = {self.input: x.numpy().astype(self.dtype)} | self.level
            (output,) = self.session.run([self.output], inputs, options)
            return torch.from_numpy(output)
        x = x.to(getattr(torch, np.dtype(self.dtype).name))
        binding = self.session.io_binding()  # one per call, as threads share the session
        shape, kind = tuple(x.shape), self.device.type
        binding.bind_input(self.input, kind, 0, self.dtype, shape, x.data_ptr())
        for name, value in self.level.items():
            binding.bind_cpu_input(name, value)
        binding.bind_output(self.output, kind)
        torch.cuda.current_stream().synchronize()  # the session has a stream of its own
        self.session.run_with_iobinding(binding, options)
        (output,) = binding.get_outputs()
        return torch.from_numpy(output.numpy()).to(self.device)


def _may_be_scores(shape: Sequence[object]) -> bool:
    """Whether an output of this shape may be [N, K], one score [N], or either with axes of 1."""
    return 1 <= len(shape) and sum(side != 1 for side in shape[1:]) <= 1


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
