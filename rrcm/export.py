"""Export: a trained classifier to ONNX, and a record of how closely the two agree.

It is one file. More weights than a protobuf message holds (2 GiB) make it a folder of that name, of
the graph and a file with its weights, which is ONNX's own way of keeping large models.
"""

import gc
import io
import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

from rrcm import noise, registry
from rrcm.backends.onnx import DATA, GRAPH, LARGEST, open_session, unload, write
from rrcm.behind import Behind
from rrcm.classifier import Classifier
from rrcm.ensembles import Combined
from rrcm.errors import BackendError
from rrcm.files import atomic, sha256
from rrcm.settings import Export
from rrcm.shards import Split


def export(
    network: Classifier,
    path: Path,
    split: Split,
    metadata: dict[str, Any],
    cfg: Export,
    *,
    architecture: str,
) -> dict[str, Any]:
    """Write ``network`` to ``path`` and return its parity record; on disagreement nothing is kept.

    The file maps ``x`` [batch, C, H, W], noisy pixels, and ``sigma`` [], their noise level, to
    ``scores`` [batch, K], in the inference form of rrcm/folding/. The same weights give the same
    bytes.

    Args:
        network: In evaluation mode, on the CPU.
        path: Where the file goes, or the folder.
        split: Images that parity is checked on, with noise of their own.
        metadata: Stored in the file, non-text values as JSON; ``sigma`` is needed.
        cfg: Opset and tolerance.
        architecture: Names the file of rrcm/folding/.

    Raises:
        BackendError: ONNX Runtime disagrees with PyTorch by more than ``cfg.tolerance``.
    """
    folded = registry.load("folding", architecture).fold(network).float()
    return _export(network, folded, path, split, metadata, cfg)


def export_ensemble(
    network: Combined,
    folded: Combined,
    path: Path,
    split: Split,
    metadata: dict[str, Any],
    cfg: Export,
) -> dict[str, Any]:
    """As `export`, of an ensemble: ``folded``, as `ensembles.load` gives it, of ``network``.

    The file has further outputs: ``prefixes`` [batch, k, K], the scores of the first 1, 2, …, k
    members, and those of each, ``member_1`` … [batch, K]. Whoever asks for one of them cuts out
    what it does not need (rrcm/backends/onnx.py).

    Raises:
        BackendError: ONNX Runtime disagrees with PyTorch by more than ``cfg.tolerance``.
    """
    return _export(network, _Outputs(folded.float()), path, split, metadata, cfg)


def export_purified(
    network: Behind,
    folded: Behind,
    path: Path,
    split: Split,
    metadata: dict[str, Any],
    cfg: Export,
) -> dict[str, Any]:
    """As `export`, of a purified classifier: ``folded``, as `purified.load` gives it.

    Where it is random, the file has a further input ``z`` [batch, S, C, H, W], the normal numbers.
    Where it calls the classifier more than once for a noisy input, or an ensemble, it has further
    outputs: ``call_1``, … [batch * calls, K], what each member says.

    Raises:
        BackendError: ONNX Runtime disagrees with PyTorch by more than ``cfg.tolerance``.
    """
    return _export(network, _Calls(folded.float()), path, split, metadata, cfg)


class _Calls(nn.Module):
    """All outputs of a purified classifier: its scores, and what they are made of."""

    def __init__(self, network: Behind) -> None:
        super().__init__()
        self.network, self.normals = network, network.normals
        members = len(network.classifier.members) if _combined(network) else 1
        calls = [f"call_{place}" for place in range(1, members + 1)]
        self.names = ["scores", *([] if _once(network) else calls)]

    def forward(
        self, x: torch.Tensor, sigma: torch.Tensor, z: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, ...]:
        calls = self.network.each(x, sigma, z)
        return self.network.combine(calls), *calls[: len(self.names) - 1]


def _combined(network: Behind) -> bool:
    return isinstance(network.classifier, Combined)


def _once(network: Behind) -> bool:
    """Whether its scores are those of one call of one network."""
    return network.votes == 1 and network.local.copies <= 1 and not _combined(network)


class _Outputs(nn.Module):
    """All outputs of an ensemble: its scores, those of prefixes, those of each member."""

    def __init__(self, network: Combined) -> None:
        super().__init__()
        self.network = network
        members = range(1, len(network.members) + 1)
        self.names = ["scores", "prefixes", *(f"member_{place}" for place in members)]

    def forward(self, x: torch.Tensor, sigma: torch.Tensor) -> tuple[torch.Tensor, ...]:
        network = self.network
        return network(x, sigma), network.prefixes(x, sigma), *network.each(x, sigma)


def _export(
    network: nn.Module,
    folded: nn.Module,
    path: Path,
    split: Split,
    metadata: dict[str, Any],
    cfg: Export,
) -> dict[str, Any]:
    pixels = torch.from_numpy(split.pixels(slice(cfg.parity_images)))
    sigma = torch.tensor(metadata["sigma"])
    size = sum(t.nbytes for t in [*folded.parameters(), *folded.buffers()])
    with (_folder if size >= LARGEST else atomic)(path) as part:
        _write(part, folded, pixels[:2], sigma, metadata, opset=cfg.opset)
        gc.collect()  # the exporter's copies of the weights, before ONNX Runtime makes its own
        graph = part / GRAPH if part.is_dir() else part
        record = parity(network, graph, pixels, sigma, tolerance=cfg.tolerance)
        if not record["max_abs_difference"] <= cfg.tolerance:
            raise BackendError(
                f"{path}: ONNX Runtime differs from PyTorch by {record['max_abs_difference']:.2g} "
                f"on noisy images, export.tolerance is {cfg.tolerance:g}"
            )
        if path.is_dir():  # an older one, which nothing can replace in one step
            shutil.rmtree(path)
    return record


def _write(
    path: Path,
    network: nn.Module,
    x: torch.Tensor,
    sigma: torch.Tensor,
    metadata: dict[str, Any],
    *,
    opset: int,
) -> None:
    """Write a file; or into the folder ``path``, a graph that names the bytes of its weights."""
    model = _trace(network, x, sigma, opset=opset)
    if path.is_dir():
        unload(model, path / DATA)
        metadata = metadata | {DATA: sha256(path / DATA)}
        path /= GRAPH
    onnx.helper.set_model_props(
        model, {k: v if isinstance(v, str) else json.dumps(v) for k, v in metadata.items()}
    )
    write(model, path)


@contextmanager
def _folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; rename it into place only if the block succeeds.

    Guarantee: whatever happens, including a crash, ``path`` is what it was, absent, or whole.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a process that had this number
    part.mkdir(parents=True)
    try:
        yield part
        for place in (*part.iterdir(), part):
            handle = os.open(place, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)
        path.unlink(missing_ok=True)  # an older file
        part.rename(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _trace(
    network: nn.Module, x: torch.Tensor, sigma: torch.Tensor, *, opset: int
) -> onnx.ModelProto:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    inputs, batch = {"x": x, "sigma": sigma}, torch.export.Dim("batch")
    shapes: list[dict[int, Any] | None] = [{0: batch}, None]
    if normals := getattr(network, "normals", ()):
        inputs["z"] = torch.zeros(len(x), *normals)
        shapes.append({0: batch})
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")  # the exporter's own deprecations are not the user's
        program = torch.onnx.export(
            network,
            (*inputs.values(),),
            dynamo=True,
            input_names=[*inputs],
            output_names=getattr(network, "names", ["scores"]),
            dynamic_shapes=(*shapes,),
            opset_version=opset,
            verbose=False,
        )
    model = program.model_proto
    for message in (model.graph, *model.graph.node, *model.graph.input, *model.graph.value_info):
        del message.metadata_props[:]  # stack traces, with the paths of this machine
    return model


@torch.inference_mode()
def parity(
    network: nn.Module, path: Path, pixels: torch.Tensor, sigma: torch.Tensor, *, tolerance: float
) -> dict[str, Any]:
    """How far ONNX Runtime's scores are from those of ``network`` as trained, on noisy images.

    Of an ensemble, those of its members and its prefixes count, too. Where one of its members is
    within ``tolerance`` of another vote, rounding may change the ensemble's scores by a whole vote.
    Such images are counted as ``undecided``, and there only the members' scores are compared. Of a
    purified classifier, what the classifier says of each purified picture takes the members' place.
    """
    images = torch.arange(len(pixels))
    z = noise.gaussian(
        0, images, torch.zeros_like(images), tuple(pixels.shape[1:]), stream=noise.PARITY
    )
    inputs = [pixels + sigma * z, sigma]
    if normals := getattr(network, "normals", ()):
        inputs.append(noise.gaussian(0, images, 1 + 0 * images, normals, stream=noise.PARITY))
    session = open_session(str(path), path, device="cpu")
    names = ["x", "sigma", "z"][: len(inputs)]
    found = session.run(None, {k: v.numpy() for k, v in zip(names, inputs, strict=True)})
    ours, theirs = [torch.from_numpy(scores) for scores in found], [network(*inputs)]
    decided, counted = None, 1  # of the outputs, those that rounding can change by a whole vote
    if isinstance(network, Combined):
        theirs += [network.prefixes(*inputs), *network.each(*inputs)]
        decided, counted = _decided(theirs[2:], network, tolerance), 2
    elif isinstance(network, Behind) and not _once(network):
        theirs += network.each(*inputs)
        decided = _all_decided(theirs[1:], network, tolerance)
    apart, more = [a - b for a, b in zip(ours, theirs, strict=True)], {}
    if decided is not None:
        apart[:counted] = [scores[decided] for scores in apart[:counted]]
        more = {"undecided": int((~decided).sum())}
    return {
        "images": len(pixels),
        "max_abs_difference": float(torch.cat([a.flatten() for a in apart]).abs().max()),
        "max_abs_score": float(theirs[0].abs().max()),
        "argmax_agreement": float((ours[0].argmax(1) == theirs[0].argmax(1)).float().mean()),
        **more,
    }


def _all_decided(calls: list[torch.Tensor], network: Behind, tolerance: float) -> torch.Tensor:
    """Images [B] on which rounding of what is called ``calls`` cannot change a vote."""
    scores = network.purified(calls)  # [B, votes, K]
    decided = torch.ones(len(scores), dtype=torch.bool)
    if _combined(network):
        decided &= _decided(calls, network.classifier, tolerance).view(len(scores), -1).all(dim=1)
    if network.votes > 1:
        best = scores.topk(min(2, scores.shape[2])).values
        # A logarithm of probabilities moves by twice as much as the scores that they are made of.
        decided &= (best[..., 0] - best[..., -1] > 4 * tolerance).all(dim=1)
    return decided


def _decided(members: list[torch.Tensor], network: Combined, tolerance: float) -> torch.Tensor:
    """Images [B] on which rounding cannot change a vote, where votes count; NaN is decided."""
    scores = torch.stack(members)
    if network.cfg.rule != "plurality" and not network.cfg.consensus:
        return torch.ones(scores.shape[1], dtype=torch.bool)
    best = scores.topk(min(2, scores.shape[2])).values
    return ~(best[..., 0] - best[..., -1] <= 2 * tolerance).any(dim=0)
