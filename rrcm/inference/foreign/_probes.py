"""What is tried on a network when it is opened: its answers to fixed pictures, on two threads."""

import multiprocessing
import pickle
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import Parameter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from rrcm.models.trained.base import checkpoint
from rrcm.noise import streams

APART = (Tensor, torch.device)  # arguments of an operation that are no constants of a network
PICTURES = 16
BLOCKS = 4  # a side; a network that averages over noise tells pictures apart by their blocks
SECONDS = 30.0  # most that threads run in step: one may wait for a lock that the other one holds


def batches(shape: tuple[int, int, int], fixed: int, *, device: torch.device) -> list[Tensor]:
    """Fixed pictures [16, C, H, W] in two batches, or repeated to two or more ``fixed`` ones.

    Coarse blocks under noise, the same on every machine.
    """
    images, (channels, *size) = torch.arange(PICTURES), shape
    blocks, noise = (
        streams.gaussian(seed, images, torch.zeros_like(images), one, stream=streams.PARITY)
        for seed, one in enumerate([(channels, BLOCKS, BLOCKS), shape])
    )
    x = (0.5 + 0.25 * (F.interpolate(blocks, size=size) + noise)).to(device)
    if not fixed:
        return [*x.chunk(2)]
    count = max(2, -(-PICTURES // fixed))
    return [*x[torch.arange(count * fixed) % PICTURES].split(fixed)]


def order(scores: Tensor) -> list[Any]:
    """The class of each row, and which scores are higher than that of the class before.

    Rounding changes neither, but where two scores nearly tie.
    """
    return [scores.argmax(1).tolist(), (scores > scores.roll(1, dims=1)).tolist()]


def forked(
    function: Callable[[], Tensor | None], *, device: torch.device, seed: int
) -> Tensor | None:
    """``function()`` in a copy of this process, so that nothing here changes, wherever it is kept.

    Random numbers without a seed of their own are others there for each ``seed``. None if there is
    no such copy, as on a GPU, or if it fails there.
    """
    on_gpu = device.type != "cpu" or torch.cuda.is_initialized()
    if on_gpu or "fork" not in multiprocessing.get_all_start_methods():
        return None
    receive, send = multiprocessing.Pipe(duplex=False)

    def run() -> None:
        torch.set_num_threads(1)  # those that this process may have had were not copied
        for seeded in (torch.manual_seed, np.random.seed, random.seed):
            seeded(seed)
        with suppress(Exception):  # of the network: the same call here tells of it
            if (made := function()) is not None:
                send.send_bytes(pickle.dumps(made.numpy()))

    process = multiprocessing.get_context("fork").Process(target=run, daemon=True)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of our threads
        process.start()
    send.close()
    try:
        ended = receive.poll(SECONDS)
        return torch.from_numpy(pickle.loads(receive.recv_bytes())) if ended else None
    except EOFError:
        return None
    finally:
        process.kill()
        process.join()


def restorer(network: nn.Module) -> Callable[[], None]:
    """A function that gives the parts of a network what they hold now.

    That is their attributes, lists and dicts in these, and the values of tensors, but not of
    parameters.
    """
    parts = [vars(part) for part in network.modules()]
    inside = [one for part in parts for one in part.values() if isinstance(one, dict | list)]
    kept: list[tuple[Any, Any]] = [(one, one.copy()) for one in (*parts, *inside)]
    values = [each for one, _ in kept for each in (one.values() if isinstance(one, dict) else one)]
    tensors = [one for one in values if isinstance(one, Tensor) and not isinstance(one, Parameter)]
    then = [(tensor, tensor.clone()) for tensor in (*network.buffers(), *tensors)]

    @torch.inference_mode()
    def restore() -> None:
        for one, before in kept:
            if isinstance(one, dict):
                for key in one.keys() - before.keys():
                    del one[key]
                one.update(before)
            else:
                one[:] = before
        for tensor, value in then:
            tensor.copy_(value)

    return restore


def in_step(function: Callable[[Tensor], Tensor], batches: Sequence[Tensor]) -> list[Tensor]:
    """``function`` of each batch, on a thread each, in step.

    Threads of Python take turns at calls. So these wait for each other at every call, and what
    one of them keeps where another keeps its own is overwritten before it is read.

    Raises:
        TimeoutError: They were not in step to the end.
    """
    barrier, end = threading.Barrier(len(batches)), time.monotonic() + SECONDS
    ended, late = threading.Event(), threading.Event()

    def wait(_frame: FrameType, event: str, _function: object) -> None:
        if event in ("call", "c_return"):
            try:
                barrier.wait(max(0.0, end - time.monotonic()))
            except threading.BrokenBarrierError:
                sys.setprofile(None)
                if not ended.is_set():
                    late.set()

    def run(batch: Tensor) -> Tensor:
        sys.setprofile(wait)
        try:
            return function(batch)
        finally:
            sys.setprofile(None)
            ended.set()
            barrier.abort()

    with ThreadPoolExecutor(len(batches)) as pool:
        try:
            answers = [*pool.map(run, batches)]
        finally:
            barrier.abort()  # one that runs does not wait for another that could not be started
    if late.is_set():
        raise TimeoutError
    return answers


class Observed(TorchDispatchMode):
    """Notes the operations of this thread with their constants, and the largest tensor's bytes.

    Constants are numbers, words, and the digests of tensors that are neither among the ``known``
    ones nor computed here: weights that a network keeps elsewhere.
    """

    supports_higher_order_operators = True  # as torch.cond is

    def __init__(self, known: Iterable[Tensor]) -> None:
        """Begin with nothing."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        self.bytes = 0
        self.operations: list[str] = []
        self._known = WeakIdKeyDictionary(dict.fromkeys(known))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation; the bytes of views of other tensors, such as weights, do not count."""
        given = tree_leaves([args, kwargs])
        constants = [str(one) for one in given if not isinstance(one, APART) and not callable(one)]
        for one in given:
            if isinstance(one, Tensor) and one not in self._known:
                constants.append(checkpoint.digest({"": one}, None))
                self._known[one] = None
        computed = func(*args, **(kwargs or {}))
        self._known.update((one, None) for one in tree_leaves(computed) if isinstance(one, Tensor))
        self.operations.append(" ".join([str(func), *constants]))
        if isinstance(computed, Tensor) and not getattr(func, "is_view", False):
            self.bytes = max(self.bytes, computed.nbytes)
        return computed
