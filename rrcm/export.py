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
from rrcm.ensembles import Combined
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
    with atomic(path) as part:
        _write(part, folded, pixels[:2], sigma, metadata, opset=cfg.opset)
        gc.collect()  # the exporter's copies of the weights, before ONNX Runtime makes its own
        record = parity(network, part, pixels, sigma, tolerance=cfg.tolerance)
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
            output_names=network.names if isinstance(network, _Outputs) else ["scores"],
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
    network: nn.Module, path: Path, pixels: torch.Tensor, sigma: torch.Tensor, *, tolerance: float
) -> dict[str, Any]:
    """How far ONNX Runtime's scores are from those of ``network`` as trained, on noisy images.

    Of an ensemble, those of its members and its prefixes count, too. Where one of its members is
    within ``tolerance`` of another vote, rounding may change the ensemble's scores by a whole vote.
    Such images are counted as ``undecided``, and there only the members' scores are compared.
    """
    images = torch.arange(len(pixels))
    z = noise.gaussian(
        0, images, torch.zeros_like(images), tuple(pixels.shape[1:]), stream=noise.PARITY
    )
    x = pixels + sigma * z
    session = open_session(str(path), path, device="cpu")
    found = session.run(None, {"x": x.numpy(), "sigma": sigma.numpy()})
    ours, theirs = [torch.from_numpy(scores) for scores in found], [network(x, sigma)]
    if isinstance(network, Combined):
        theirs += [network.prefixes(x, sigma), *network.each(x, sigma)]
    apart, more = [a - b for a, b in zip(ours, theirs, strict=True)], {}
    if isinstance(network, Combined):
        decided = _decided(theirs[2:], network, tolerance)
        apart[:2] = [scores[decided] for scores in apart[:2]]
        more = {"undecided": int((~decided).sum())}
    return {
        "images": len(pixels),
        "max_abs_difference": float(torch.cat([a.flatten() for a in apart]).abs().max()),
        "max_abs_score": float(theirs[0].abs().max()),
        "argmax_agreement": float((ours[0].argmax(1) == theirs[0].argmax(1)).float().mean()),
        **more,
    }


def _decided(members: list[torch.Tensor], network: Combined, tolerance: float) -> torch.Tensor:
    """Images [B] on which rounding cannot change a vote, where votes count; NaN is decided."""
    scores = torch.stack(members)
    if network.cfg.rule != "plurality" and not network.cfg.consensus:
        return torch.ones(scores.shape[1], dtype=torch.bool)
    best = scores.topk(min(2, scores.shape[2])).values
    return ~(best[..., 0] - best[..., -1] <= 2 * tolerance).any(dim=0)
