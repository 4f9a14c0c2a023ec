"""A PyTorch network as a backend, as it is: on its own device, in its own precision."""

import copy
import pickle
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rrcm.config.foreign import Foreign
from rrcm.core.errors import BackendError, one_line
from rrcm.core.labels import NO_CLASS
from rrcm.data.splits.pictures import Fit
from rrcm.inference import backend, batch_norm, runtime
from rrcm.inference.foreign import _combining, _exported, _probes, _scores
from rrcm.inference.foreign._normalisation import Normalisation
from rrcm.models.trained.base import checkpoint

PRECISIONS = {  # from the lowest, which is that of a network
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}
PIXELS = (0.5, 0.1, 1.0, 2.0, -1.0)  # ends of the first ramps, which no answer may depend on
SEVERAL = 13  # pictures of a batch in which parts of it are looked for; widths are rarely multiples
LARGEST = 2**24  # bytes of an activation; malloc returns larger ones to the system after each use
RANDOM = (
    "has no weights before the first picture, and would get random ones; call it on a picture of "
    "its size, and load its weights"
)
KEEP = (
    "load its weights, export it after eval(), call it on pictures that it was made for, if the "
    "first ones set it, and keep it fixed"
)
# What a network may raise, and what more when it, or what it keeps, is copied and run
FAILS = (RuntimeError, AssertionError, ValueError, TypeError, LookupError, AttributeError)
NOT_COPIED = (*FAILS, OSError, copy.Error, pickle.PickleError)


class Backend(backend.Backend):
    """A network in evaluation mode, which is asked for scores and never changed.

    Scores are what it returns, or ``logits`` of that, an attribute or a key, as in Hugging Face's
    models; see `_scores.of_classes`. ``precision`` is the lowest of its parameters and buffers. An
    exported program may have a ``fixed`` batch, to which others are cut and filled up.
    ``fit`` brings pictures to its ``shape`` [C, H, W], and ``natural`` is the order of classes in
    folders (`image_folder.folder`).

    Guarantee: calls on several threads do not meet. Each has a copy of the network, which shares
    its parameters; where copies give other scores (a hook keeps state outside the network), calls
    wait for each other.
    """

    natural = False

    def __init__(self, network: nn.Module, foreign: Foreign, *, fit: Fit, name: str = "") -> None:
        """Ask ``network`` for the scores of a grey picture of the shape of ``fit``.

        The ``batch`` of ``foreign`` becomes the ``fixed`` batch; its ``classes`` are counted where
        the network returns class numbers and no scores. The attribute ``weights`` is the SHA-256 of
        the name (by default that of the network's class), the shape, the normalisation, all
        tensors, the operations of PyTorch with their constants, and of which scores are higher than
        others for 16 fixed pictures.

        Raises:
            BackendError: A part of it is in training mode, quantised by PyTorch, on the device meta
                or has no weights before its first call, its first pictures change it (it is left
                as it was), it does not run at this shape or under noise, or it does not return
                scores of two classes or more.
            ConfigError: ``mean`` or ``std`` is invalid.
        """
        kind = type(network)  # those of exported programs are made for each
        own = kind.__name__ if _exported.is_one(network) else kind.__qualname__
        self.name = name = name or own or "it"
        if training := _exported.training(network):
            raise BackendError(
                f"{name}: {training[0] or 'the network'} is in training mode, and nothing can be "
                "certified; call eval() first"
            )
        named = [*network.named_parameters(), *network.named_buffers()]
        if lazy := [key for key, value in named if is_lazy(value)]:
            raise BackendError(f"{name}: {lazy[0]} {RANDOM}")
        if any(value.is_meta for _, value in named):
            raise BackendError(
                f"{name}: tensors on the device meta have no values; load the weights first, by "
                "load_state_dict(…, assign=True)"
            )
        state = network.state_dict()
        if odd := [k for k, v in state.items() if not isinstance(v, Tensor) or v.is_quantized]:
            raise BackendError(
                f"{name}: {odd[0]} is no plain tensor, as in networks that PyTorch quantised; "
                "export it as an ONNX file"
            )
        tensors = [tensor for _, tensor in named]
        floating = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
        shape = fit.shape
        self.sigma, self.shape, self.fit, self.network = foreign.sigma, shape, fit, network
        self.device = tensors[0].device if tensors else torch.device("cpu")
        self.dtype = floating[0] if floating else torch.float32
        self.precision = next(
            (text for kind, text in PRECISIONS.items() if kind in floating), "fp32"
        )
        self.numbers, self.count_nan = foreign.outputs, foreign.count_nan
        mean, std, device = foreign.mean, foreign.std, str(self.device)
        self.normalise = Normalisation(mean, std, channels=shape[0], device=device)
        self.provider = runtime.of_torch(self.device)
        self._lock = threading.Lock()
        self._idle: deque[nn.Module] | None = None  # copies that no call has; None: there are none
        self._batches = (foreign.batch,) if foreign.batch else (_exported.batch(network), 0, 1)
        restore = _probes.restorer(network)
        rows, fresh = self._first_call(restore)  # what a network keeps from it is computed
        with _probes.Observed(state.values()) as observed:
            outputs = self._probe(rows) - foreign.count_nan
        self.classes = [*map(str, range(outputs)), *[NO_CLASS] * foreign.count_nan]
        most = max(1, LARGEST * rows // observed.bytes)
        self.most = most if self.device.type == "cpu" else sys.maxsize
        batches = _probes.batches(shape, self.fixed, device=self.device)
        scores = [self.scores(batch) for batch in batches]
        self._copy_if_same(batches[:2], scores[:2])
        order = _probes.order(torch.cat(scores)[: _probes.PICTURES])
        self.combines = self._combines(batches[0] if self.fixed else torch.cat(batches)[:SEVERAL])
        if fresh is not None and not _same(fresh, self.scores(batches[0][:rows])):
            restore()
            raise BackendError(
                f"{name}: the same pictures have other scores after further calls: there is "
                "randomness inside, such as dropout, or it keeps something of the pictures that it "
                f"sees; {KEEP}"
            )
        around = [name, shape, str(self.normalise), observed.operations, order]
        self.weights = checkpoint.digest(state, around)

    def _first_call(self, restore: Callable[[], None]) -> tuple[int, Tensor | None]:
        """The rows of the first batch that runs, and scores that a network gave of it before.

        Refuses a network in which pictures make parameters or change buffers, or whose answers are
        others after other first pictures and random numbers, and leaves it as it was.
        """
        network = self.network
        buffers = [(key, buffer, buffer.clone()) for key, buffer in network.named_buffers()]
        known = dict(network.named_parameters()).keys()
        apart = [  # before anything here is called
            _probes.forked(partial(self._after, pixel), device=self.device, seed=seed)
            for seed, pixel in enumerate(PIXELS)
        ]
        try:
            changed = ["what it keeps"] if self._set_by_first(apart) else []
            rows = 0 if changed else self._runs()
            if later := dict(network.named_parameters()).keys() - known:
                raise BackendError(f"{self.name}: {min(later)} {RANDOM}")
            same = partial(torch.allclose, rtol=0, atol=0, equal_nan=True)
            changed += [key for key, now, then in buffers if not same(now, then)]
            if rows and None in apart:
                apart = []
                for pixel in reversed(PIXELS):
                    restore()
                    apart.append(self._after(pixel))
                changed += ["what it keeps"] * self._set_by_first(apart)
            if changed:
                raise BackendError(
                    f"{self.name}: {changed[0]} changes with the pictures that it classifies, or "
                    f"the first one draws it at random; {KEEP}"
                )
        except BackendError:
            restore()
            raise
        return rows, next((each[0] for each in apart if each is not None), None)

    def _after(self, pixel: float) -> Tensor | None:
        """Scores [2, rows, K] of fixed pictures, asked for twice after a ramp, if that runs."""
        with suppress(BackendError):
            rows = self._runs(pixel)
            x = _probes.batches(self.shape, self.fixed, device=self.device)[0][:rows]
            return torch.stack([self.scores(x), self.scores(x)])
        return None

    @staticmethod
    def _set_by_first(after: Sequence[Tensor | None]) -> bool:
        """Whether answers depend on the first picture, of a network that repeats its answers."""
        answers = [each for each in after if each is not None]
        if not answers or not _same(answers[0][0], answers[0][1]):
            return False
        wanted = answers[0]
        return not all(each.shape == wanted.shape and _same(each, wanted) for each in answers)

    def _runs(self, pixel: float = PIXELS[0]) -> int:
        """The rows of the first batch that runs; a program in it may tell what it takes."""
        failures = []
        for fixed in dict.fromkeys(self._batches):
            self.fixed, rows = fixed, fixed or _exported.FEWEST
            try:
                self._probe(rows, pixel)
            except BackendError as error:
                failures.append(error)
            else:
                return rows
        raise failures[0]

    def _probe(self, rows: int, pixel: float = PIXELS[0]) -> int:
        """The number of classes, by classifying a ramp up to ``pixel``; the first run may fail."""
        channels, height, width = self.shape
        ramp = torch.linspace(pixel / 2, pixel, height * width, device=self.device)
        try:
            with torch.inference_mode():
                scores = self.function(ramp.view(height, width).repeat(rows, channels, 1, 1))
        except FAILS as error:
            reason = one_line(error)
            raise BackendError(
                f"{self.name} does not run at {height} x {width}: {reason}"
            ) from None
        if scores.ndim != 2 or len(scores) != rows or scores.shape[1] < 2 + bool(self.count_nan):
            given = [*scores.shape]
            raise BackendError(
                f"{self.name} gives no scores of two classes or more: {rows} pictures gave {given}"
            )
        return scores.shape[1]

    @torch.inference_mode()
    def _combines(self, batch: Tensor) -> str:
        if len(batch) == 1:
            return ""
        pictures = self.normalise(batch).to(self.dtype)
        with self._exclusive() as network, _combining.Combined(pictures) as combined:
            with suppress(*FAILS):  # of so many pictures; the checks tell of it
                network(pictures)
        return combined.place

    def _copy_if_same(self, batches: Sequence[Tensor], scores: Sequence[Tensor]) -> None:
        """Give calls copies of the network from now on, if copies that run at a time do not meet.

        ``scores`` are those of each batch alone.
        """
        try:
            self._idle = deque(self._copy() for _ in batches)
            together = _probes.in_step(torch.inference_mode()(self.function), batches)
        except NOT_COPIED:
            self._idle = None
            return
        if not all(map(_same, scores, together)):
            self._idle = None

    def _copy(self) -> nn.Module:
        shared: list[Any] = [*self.network.parameters()]
        shared += filter(_exported.is_one, self.network.modules())  # they keep nothing
        with torch.inference_mode(mode=False):  # gradients go through its buffers, too
            return copy.deepcopy(self.network, {id(one): one for one in shared})

    @property
    def copies(self) -> int:
        """Those that no other call has."""
        return max(1, len(self._idle or ()))

    def __getstate__(self) -> dict[str, Any]:
        """All but the lock and the copies, which an unpickled or copied one makes for itself."""
        return vars(self) | {"_lock": None, "_idle": None if self._idle is None else deque()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a state of `__getstate__`."""
        vars(self).update(state, _lock=threading.Lock())

    @contextmanager
    def _exclusive(self) -> Iterator[nn.Module]:
        """A copy of the network that no other call has, or the network itself."""
        if self._idle is None:
            with self._lock:
                yield self.network
            return
        try:
            network = self._idle.popleft()  # in turn, so that each can be asked
        except IndexError:
            network = self._copy()
        yield network
        self._idle.append(network)

    def on(self, device: str) -> Self:
        """With a copy of the network."""
        copied = copy.copy(self)
        copied._lock = self._lock
        try:
            if self._idle is None:
                if torch.device(device) == self.device:
                    return copied  # calls of both wait for each other
                raise BackendError(
                    f"device {device}: the network cannot be copied, or keeps state outside "
                    f"itself, such as in a hook; certify it on {self.device}"
                )
            if torch.device(device).type == "meta":
                raise BackendError(f"device {device}: tensors there have no values")
            copied.network, copied._idle = copy.deepcopy(self.network).to(device), deque()
        except (RuntimeError, AssertionError) as error:
            raise BackendError(f"device {device}: {one_line(error)}") from None
        copied.device = torch.device(device)
        copied.normalise = copy.deepcopy(self.normalise).to(device)
        return copied

    @torch.inference_mode()
    def scores(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """Computed on the calling thread.

        Raises:
            BackendError: The network fails, as one that checks the range of its pixels does.
        """
        try:
            return self.function(x)
        except FAILS as error:
            black, white = float(x.min()), float(x.max())
            raise BackendError(
                f"{self.name} fails on {len(x)} pictures with pixels from {black:.3g} to "
                f"{white:.3g}, as noise makes them: "
                f"{one_line(error) or type(error).__name__}"
            ) from error

    @torch.inference_mode()
    def unlike(self, x: Tensor) -> str:
        """By the statistics of BatchNorm."""
        with self._exclusive() as network, batch_norm.observed(network) as layers:
            for batch in x.split(self.fixed or SEVERAL) if layers else ():
                if len(batch) == (self.fixed or len(batch)):
                    network(self.normalise(batch.to(self.device)).to(self.dtype))
        return batch_norm.unlike(layers)

    def function(self, x: Tensor) -> Tensor:
        """`scores`, with gradients."""
        if self.device.type == "cpu" and torch.get_num_threads() != 1:
            torch.set_num_threads(1)  # sample() runs one such thread per core
        if self.fixed and len(x) != self.fixed:
            filled = x[torch.arange(len(x) + -len(x) % self.fixed) % len(x)]
            return torch.cat([self.function(batch) for batch in filled.split(self.fixed)])[: len(x)]
        with self._exclusive() as network:
            made: Any = network(self.normalise(x).to(self.dtype))
            made = made.get("logits", made) if isinstance(made, Mapping) else made
            made = getattr(made, "logits", made)
            if not isinstance(made, Tensor):
                raise TypeError(f"it returns {type(made).__name__}, not a tensor or logits")
            made = made.clone()  # the network may keep, and overwrite, what it returned
        scores = _scores.of_classes(made, rows=len(x), classes=self.numbers)
        return _scores.with_no_class(scores) if self.count_nan and scores.ndim == 2 else scores


def _same(scores: Tensor, others: Tensor) -> bool:
    """Whether scores are equal up to float32 rounding; masked ones need not be finite."""
    return torch.allclose(scores, others, rtol=1e-4, atol=1e-6, equal_nan=True)
