"""Exports a trained classifier to ONNX and records how closely the two agree.

The export is one file. If the weights exceed the 2 GiB of a protobuf message, it is a folder of
that name with the graph and a file of weights, in ONNX's external data format.
"""

import gc
import io
import json
import logging
import shutil
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from rrcm.config.certification import Export
from rrcm.core.errors import BackendError
from rrcm.core.files import atomic, sha256
from rrcm.data.splits.shards import Split
from rrcm.inference.backends.onnx import DATA, GRAPH, LARGEST, open_session, unload, write
from rrcm.models.trained.ensembles import EnsembleClassifier
from rrcm.models.trained.purified import PurifiedClassifier
from rrcm.noise import streams


def export(
    network: nn.Module,
    folded: nn.Module,
    path: Path,
    split: Split,
    metadata: dict[str, Any],
    cfg: Export,
) -> dict[str, Any]:
    """Write a classifier to ``path`` and return its parity record; no file is left on disagreement.

    The file maps ``x`` [batch, C, H, W], noisy pixels, and ``sigma`` [], their noise level, to
    ``scores`` [batch, K]. A random classifier has a further input ``z`` [batch, S, C, H, W], its
    normal numbers. One that combines scores has these as further outputs, which the backend drops:
    ``member_1`` … of an ensemble, ``call_1`` … of a purified classifier. The same weights give the
    same bytes.

    Args:
        network: The classifier as trained, in evaluation mode, on the CPU.
        folded: Its form for inference, from `purified.load`, which is what the file holds.
        path: The file or folder to write.
        split: Images for the parity check, which adds its own noise.
        metadata: Stored in the file, with values other than text as JSON; must have ``sigma``.
        cfg: Opset, number of images and tolerance.

    Raises:
        BackendError: ONNX Runtime disagrees with PyTorch by more than ``cfg.tolerance``.
    """
    combines = isinstance(network, EnsembleClassifier | PurifiedClassifier)
    compared: Any = network
    folded = _Outputs(folded.float()) if combines else folded.float()
    normals = compared.normals if combines else ()
    inputs = _inputs(split.pixels(slice(cfg.parity_images)), metadata["sigma"], normals)
    with torch.inference_mode():
        given = (*inputs.values(),)
        outputs = compared.parity_outputs(*given) if combines else {"scores": network(*given)}
    decided = torch.ones(len(outputs["scores"]), dtype=torch.bool)
    if isinstance(network, PurifiedClassifier):
        decided = network.decided(outputs, tolerance=cfg.tolerance)
    size = sum(t.nbytes for t in [*folded.parameters(), *folded.buffers()])
    with atomic(path) as part:
        if size >= LARGEST:
            part.mkdir()
        _write(part, _trace(folded, inputs, [*outputs], opset=cfg.opset), metadata)
        gc.collect()  # frees the exporter's copies of the weights before ONNX Runtime makes its own
        graph = part / GRAPH if part.is_dir() else part
        record = parity(graph, inputs, outputs, decided)
        if not record["max_abs_difference"] <= cfg.tolerance:
            raise BackendError(
                f"{path}: ONNX Runtime differs from PyTorch by {record['max_abs_difference']:.2g} "
                f"on noisy images, export.tolerance is {cfg.tolerance:g}"
            )
        if path.is_dir():  # an older folder cannot be replaced in one step
            shutil.rmtree(path)
        elif part.is_dir():
            path.unlink(missing_ok=True)  # nor can an older file by a folder
    return record


class _Outputs(nn.Module):
    """The `parity_outputs` of a classifier as a tuple, which PyTorch can trace."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, sigma: Tensor, z: Tensor | None = None) -> tuple[Tensor, ...]:
        inputs = (x, sigma) if z is None else (x, sigma, z)
        return (*self.network.parity_outputs(*inputs).values(),)


def _inputs(pixels: np.ndarray, sigma: float, normals: tuple[int, ...]) -> dict[str, Tensor]:
    """Inputs of the file by name: noisy images, sigma and, for a random classifier, z."""
    x, images = torch.from_numpy(pixels), torch.arange(len(pixels))
    noise = streams.gaussian(
        0, images, torch.zeros_like(images), tuple(x.shape[1:]), stream=streams.PARITY
    )
    level = torch.tensor(sigma)
    inputs = {"x": x + level * noise, "sigma": level}
    if normals:
        draws = torch.ones_like(images)
        inputs["z"] = streams.gaussian(0, images, draws, normals, stream=streams.PARITY)
    return inputs


def _write(path: Path, model: onnx.ModelProto, metadata: dict[str, Any]) -> None:
    """Write an ONNX file, or a graph and its weights if ``path`` is a folder."""
    if path.is_dir():
        unload(model, path / DATA)
        metadata = metadata | {DATA: sha256(path / DATA)}
        path /= GRAPH
    said = {k: v if isinstance(v, str) else json.dumps(v) for k, v in metadata.items()}
    write(model, path, said)


def _trace(
    network: nn.Module, inputs: dict[str, Tensor], outputs: list[str], *, opset: int
) -> onnx.ModelProto:
    """The ONNX model of ``network``, traced on two rows, with a dynamic batch dimension."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    example = {name: value if name == "sigma" else value[:2] for name, value in inputs.items()}
    # By its name alone, an axis may have guards that are no whole number, such as 5 x batch < 64.
    shapes = [None if name == "sigma" else {0: "batch"} for name in inputs]
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")  # the exporter's own deprecations are not the user's
        program = torch.onnx.export(
            network,
            (*example.values(),),
            dynamo=True,
            input_names=[*example],
            output_names=outputs,
            dynamic_shapes=(*shapes,),
            opset_version=opset,
            verbose=False,
        )
    assert program is not None  # as always with dynamo
    model = program.model_proto
    for message in (model.graph, *model.graph.node, *model.graph.input, *model.graph.value_info):
        del message.metadata_props[:]  # stack traces, with the paths of this machine
    return model


def parity(
    path: Path, inputs: dict[str, Tensor], outputs: dict[str, Tensor], decided: Tensor
) -> dict[str, Any]:
    """Compare the outputs of ONNX Runtime with PyTorch's ``outputs``; returns the parity record.

    On rows that are not ``decided`` [B], rounding may change a whole vote: their ``scores`` are not
    compared, but the scores that these combine are. The record counts them as ``undecided``.
    """
    session, _ = open_session(str(path), path, device="cpu")
    arrays = session.run([*outputs], {name: value.numpy() for name, value in inputs.items()})
    exported = dict(zip(outputs, map(torch.from_numpy, arrays), strict=True))
    apart = {name: exported[name] - value for name, value in outputs.items()}
    apart["scores"] = apart["scores"][decided]
    votes = [named["scores"].argmax(dim=1) for named in (exported, outputs)]
    return {
        "images": len(decided),
        "max_abs_difference": float(torch.cat([a.flatten() for a in apart.values()]).abs().max()),
        "max_abs_score": float(outputs["scores"].abs().max()),
        "argmax_agreement": float((votes[0] == votes[1]).float().mean()),
        "undecided": int((~decided).sum()),
    }
