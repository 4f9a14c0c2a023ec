"""A PyTorch network as a backend, as it is: on its own device, in its own precision."""

import copy
import pickle
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rrcm.core.errors import BackendError, one_line
from rrcm.inference.foreign import _probes, _scores
from rrcm.inference.foreign._normalisation import Normalisation
from rrcm.models.trained.base import checkpoint

PRECISIONS = {  # from the lowest, which is that of a network
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}
PROBED = 2  # grey pictures
LARGEST = 2**24  # bytes of an activation; malloc returns larger ones to the system after each use

NOT_COPIED = (  # what a network may raise when it, or what it keeps, is copied and run
    *(RuntimeError, AssertionError, ValueError, TypeError, LookupError, AttributeError, OSError),
    *(copy.Error, pickle.PickleError),
)


class Backend:
    """A network in evaluation mode, which is asked for scores and never changed.

    Scores are what it returns, or the attribute ``logits`` of that, as in Hugging Face's models;
    see `_scores.of_classes`. ``precision`` is the lowest of its parameters and buffers.
    ``fixed`` is 0: batches may have any size. On a CPU, more than ``most`` rows take longer each.
    ``crop_pct`` and ``interpolation`` are common values.

    Guarantee: calls on several threads do not meet. Each has a copy of the network, which shares
    its parameters; where copies give other scores (a hook keeps state outside the network), calls
    wait for each other.
    """

    fixed = 0
    normals = ()  # it is deterministic
    crop_pct, interpolation = 0.875, "bicubic"

    def __init__(
        self,
        network: nn.Module,
        *,
        sigma: float,
        shape: tuple[int, int, int],
        mean: tuple[float, ...] = (0.0,),
        std: tuple[float, ...] = (1.0,),
        name: str = "",
        classes: int | None = None,
    ) -> None:
        """Ask ``network`` for the scores of a grey picture of ``shape`` [C, H, W].

        ``sigma`` is the noise level to certify at; ``mean`` and ``std`` of pixels in [0, 1] are
        applied after the noise. ``classes`` is how many there are, where it returns class numbers
        and no scores. The attribute ``weights`` is the SHA-256 of the name (by default
        that of the network's class), the shape, the normalisation, all tensors, the operations of
        PyTorch with their constants, and of which scores are higher than others for 16 fixed
        pictures.

        Raises:
            BackendError: A part of it is in training mode or quantised by PyTorch, it does not run
                at this shape, or it does not return scores of two classes or more.
            ConfigError: ``mean`` or ``std`` is invalid.
        """
        name = name or type(network).__qualname__
        if training := [name for name, part in network.named_modules() if part.training]:
            raise BackendError(
                f"{name}: {training[0] or 'the network'} is in training mode, and nothing can be "
                "certified; call eval() first"
            )
        state = network.state_dict()
        if odd := [key for key, value in state.items() if not _plain(value)]:
            raise BackendError(
                f"{name}: {odd[0]} is no plain tensor, as in networks that PyTorch quantised; "
                "export it as an ONNX file"
            )
        tensors = [*network.parameters(), *network.buffers()]
        floating = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
        self.sigma, self.shape, self.network = sigma, shape, network
        self.device = tensors[0].device if tensors else torch.device("cpu")
        self.dtype = floating[0] if floating else torch.float32
        self.precision = next(
            (text for kind, text in PRECISIONS.items() if kind in floating), "fp32"
        )
        self.numbers = classes
        self.normalise = Normalisation(mean, std, channels=shape[0], device=str(self.device))
        self.provider = f"torch-{self.device.type}"
        self._lock = threading.Lock()
        self._idle: list[nn.Module] | None = None  # copies that no call has; None: there are none
        self._probe(name)  # what a network keeps from its first call is computed
        with _probes.Observed() as observed:
            self.classes: Sequence[str] = [str(k) for k in range(self._probe(name))]
        rows = max(1, LARGEST * PROBED // observed.bytes)
        self.most = rows if self.device.type == "cpu" else sys.maxsize
        batches = _probes.pictures(shape).to(self.device).chunk(2)
        scores = [self.scores(batch) for batch in batches]
        self._copy_if_same(batches, scores)
        order = _probes.order(torch.cat(scores))
        around = [name, shape, str(self.normalise), observed.operations, order]
        self.weights = checkpoint.digest(state, around)

    def _probe(self, name: str) -> int:
        """The number of classes, by classifying a grey picture; the first run may fail."""
        _, height, width = self.shape
        try:
            scores = self.scores(torch.full((PROBED, *self.shape), 0.5, device=self.device))
        except (RuntimeError, AssertionError, ValueError, TypeError, IndexError) as error:
            reason = one_line(error)
            raise BackendError(f"{name} does not run at {height} x {width}: {reason}") from None
        if scores.ndim != 2 or len(scores) != PROBED or scores.shape[1] < 2:
            given = [*scores.shape]
            raise BackendError(
                f"{name} gives no scores of two classes or more: two pictures gave {given}"
            )
        return scores.shape[1]

    def _copy_if_same(self, batches: Sequence[Tensor], scores: Sequence[Tensor]) -> None:
        """Give calls copies of the network from now on, if copies that run at a time do not meet.

        ``scores`` are those of each batch alone.
        """
        try:
            self._idle = [self._copy() for _ in batches]
            together = _probes.in_step(self.scores, batches)
        except NOT_COPIED:
            self._idle = None
            return
        if not all(map(_same, scores, together)):
            self._idle = None

    def _copy(self) -> nn.Module:
        shared: dict[int, Any] = {id(tensor): tensor for tensor in self.network.parameters()}
        with torch.inference_mode(mode=False):  # gradients go through its buffers, too
            return copy.deepcopy(self.network, shared)

    @contextmanager
    def _exclusive(self) -> Iterator[nn.Module]:
        """A copy of the network that no other call has, or the network itself."""
        if self._idle is None:
            with self._lock:
                yield self.network
            return
        try:
            network = self._idle.pop()
        except IndexError:
            network = self._copy()
        yield network
        self._idle.append(network)

    def on(self, device: str) -> "Backend":
        """The same function on another device, with a copy of the network.

        Raises:
            BackendError: There is no such device, or a copy is another function.
        """
        copied = copy.copy(self)
        try:
            if self._idle is None:
                if torch.device(device) == self.device:
                    return copied  # calls of both wait for each other
                raise BackendError(
                    f"device {device}: the network cannot be copied, or keeps state outside "
                    f"itself, such as in a hook; certify it on {self.device}"
                )
            copied.network, copied._idle = copy.deepcopy(self.network).to(device), []
        except (RuntimeError, AssertionError) as error:
            raise BackendError(f"device {device}: {one_line(error)}") from None
        copied.device = torch.device(device)
        copied.normalise = self.normalise.on(device)
        return copied

    @torch.inference_mode()
    def scores(self, x: Tensor) -> Tensor:
        """Scores [B, K] of noisy pixels ``x`` [B, C, H, W], both float32 on ``device``.

        Computed on the calling thread; on a GPU, in the order of its current stream.
        """
        return self.function(x)

    def function(self, x: Tensor) -> Tensor:
        """`scores`, with gradients."""
        if self.device.type == "cpu" and torch.get_num_threads() != 1:
            torch.set_num_threads(1)  # sample() runs one such thread per core
        with self._exclusive() as network:
            made: Any = network(self.normalise(x).to(self.dtype))
            made = getattr(made, "logits", made)
            if not isinstance(made, Tensor):
                raise TypeError(f"it returns {type(made).__name__}, not a tensor or logits")
            made = made.clone()  # the network may keep, and overwrite, what it returned
        return _scores.of_classes(made, rows=len(x), classes=self.numbers)


def _plain(value: object) -> bool:
    return isinstance(value, Tensor) and not value.is_quantized


def _same(scores: Tensor, others: Tensor) -> bool:
    """Whether scores are equal up to float32 rounding; masked ones need not be finite."""
    return torch.allclose(scores, others, rtol=1e-4, atol=1e-6, equal_nan=True)
