"""Export: a trained classifier to one ONNX file, and a record of how closely the two agree."""

import gc
import io
import json
import logging
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

from rrcm import noise, registry
from rrcm.backends.onnx import open_session
from rrcm.classifier import Classifier
from rrcm.errors import BackendError
from rrcm.files import atomic
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
        path: Where the file goes.
        split: Images that parity is checked on, with noise of their own.
        metadata: Stored in the file, non-text values as JSON; ``sigma`` is needed.
        cfg: Opset and tolerance.
        architecture: Names the file of rrcm/folding/.

    Raises:
        BackendError: ONNX Runtime disagrees with PyTorch by more than ``cfg.tolerance``.
    """
    pixels = torch.from_numpy(split.pixels(slice(cfg.parity_images)))
    sigma = torch.tensor(metadata["sigma"])
    with atomic(path) as part:
        fold = registry.load("folding", architecture).fold
        _write(part, fold(network).float(), pixels[:2], sigma, metadata, opset=cfg.opset)
        gc.collect()  # the exporter's copies of the weights, before ONNX Runtime makes its own
        record = parity(network, part, pixels, sigma)
        if not record["max_abs_difference"] <= cfg.tolerance:
            raise BackendError(
                f"{path}: ONNX Runtime differs from PyTorch by {record['max_abs_difference']:.2g} "
                f"on noisy images, export.tolerance is {cfg.tolerance:g}"
            )
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
    model = _trace(network, x, sigma, opset=opset)
    onnx.helper.set_model_props(
        model, {k: v if isinstance(v, str) else json.dumps(v) for k, v in metadata.items()}
    )
    onnx.save(model, path)


def _trace(
    network: nn.Module, x: torch.Tensor, sigma: torch.Tensor, *, opset: int
) -> onnx.ModelProto:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")  # the exporter's own deprecations are not the user's
        program = torch.onnx.export(
            network,
            (x, sigma),
            dynamo=True,
            input_names=["x", "sigma"],
            output_names=["scores"],
            dynamic_shapes=({0: torch.export.Dim("batch")}, None),
            opset_version=opset,
            verbose=False,
        )
    model = program.model_proto
    for message in (model.graph, *model.graph.node, *model.graph.input, *model.graph.value_info):
        del message.metadata_props[:]  # stack traces, with the paths of this machine
    return model


@torch.inference_mode()
def parity(
    network: Classifier, path: Path, pixels: torch.Tensor, sigma: torch.Tensor
) -> dict[str, Any]:
    """How far ONNX Runtime's scores are from those of ``network`` as trained, on noisy images."""
    images = torch.arange(len(pixels))
    z = noise.gaussian(
        0, images, torch.zeros_like(images), tuple(pixels.shape[1:]), stream=noise.PARITY
    )
    x = pixels + sigma * z
    session = open_session(str(path), path, device="cpu")
    (ours,) = session.run(["scores"], {"x": x.numpy(), "sigma": sigma.numpy()})
    theirs = network(x, sigma).numpy()
    return {
        "images": len(pixels),
        "max_abs_difference": float(abs(ours - theirs).max()),
        "max_abs_score": float(abs(theirs).max()),
        "argmax_agreement": float((ours.argmax(1) == theirs.argmax(1)).mean()),
    }
