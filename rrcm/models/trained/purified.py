r"""Purified classifiers: a denoiser in front of a classifier, and its files.

Salman et al. (2020), arXiv:2003.01908 (denoised smoothing); Carlini et al. (2023), arXiv:2206.10550
(DDS); Xiao et al. (2023), arXiv:2211.00322 (DensePure); Zhang et al. (2023), arXiv:2308.14333
(DiffSmooth). Smoothing certifies any function of the noisy input, so the denoiser needs no proof.
With a purifier P of rrcm/diffusion/purifiers/, a resizing R, a classifier f and m noisy copies of
its input,

.. math:: g(x, \sigma, z) = \log \tfrac1m \sum_{i=1}^m
    \mathrm{softmax}\, f\bigl(R\, P(x, \sigma, z) + \sigma' \delta_i\bigr)

(eq. 51); with no copies or one, the scores are those of f. The majority of K such votes wins; ties
go to the lowest class (eq. 52). Copies are not clipped.

Randomness is an argument: z are standard normal numbers, fresh for every noisy draw. This class is
a deterministic function of (x, z); the certified function is the randomised classifier that draws z
independently of the noise of x and of other draws, as the theorem requires. Fixed copies are
constants of the function.

Guarantees: a row's scores depend only on that row's x and z, if those of the parts do.
``model.safetensors`` holds everything that defines the function, and its SHA-256 identifies the
function in votes files.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrcm.config.certification import Local, Purified
from rrcm.core import registry
from rrcm.core.errors import CheckpointError
from rrcm.core.files import read_config, sha256, write_json
from rrcm.core.ranges import require
from rrcm.core.schema import parse
from rrcm.models.trained import denoiser, ensembles
from rrcm.models.trained.base import checkpoint
from rrcm.models.trained.base.classifier import AtSigma
from rrcm.models.trained.denoiser import Denoiser, Exact
from rrcm.models.trained.ensembles import EnsembleClassifier
from rrcm.noise import streams

FUNCTION = ("purifier", "purify", "votes", "local")  # keys of `Purified` that define the function


class PurifiedClassifier(Exact):
    """A classifier behind a purifier: (x [B, C, H, W], sigma [], z) -> scores [B, K].

    ``normals`` is the shape [S, C, H, W] of z for one row, or () without randomness. The S noise
    fields are ordered by vote; within a vote, those for purifying precede those for the copies.
    """

    copies: Tensor | None

    def __init__(
        self,
        purifier: nn.Module,
        classifier: nn.Module,
        resize: nn.Module,
        *,
        votes: int,
        normals: tuple[int, ...],
        local: Local,
        copies: Tensor | None,
    ) -> None:
        """Combine parts that `build` has checked against each other.

        ``classifier`` maps pixels to scores; ``copies`` is the fixed noise [m, C, H, W] or None.
        """
        super().__init__()
        self.purifier, self.classifier, self.resize = purifier, classifier, resize
        self.votes, self.normals, self.local = votes, normals, local
        self.register_buffer("copies", copies)

    def forward(self, x: Tensor, sigma: Tensor, z: Tensor | None = None) -> Tensor:
        """Scores [B, K]: those of a single vote, or else the number of votes for each class."""
        return self.combine(self.each(x, sigma, z))

    def each(self, x: Tensor, sigma: Tensor, z: Tensor | None = None) -> list[Tensor]:
        """Scores [B * votes * copies, K] of the classifier, or of each of its members."""
        shape, reverse, local = x.shape[1:], None, self.copies
        if self.votes > 1:
            x = x[:, None].expand(-1, self.votes, *shape).reshape(-1, *shape)
        if z is not None:
            z = z.reshape(-1, self.normals[0] // self.votes, *shape)
            fresh = 0 if self.copies is not None else self.local.copies
            reverse, last = z[:, : z.shape[1] - fresh], z[:, z.shape[1] - fresh :]
            local = last if fresh else local
        purified_x = self.resize(self.purifier(x, sigma, reverse))
        if local is not None:
            purified_x = purified_x[:, None] + self.local.sigma * local
            purified_x = purified_x.reshape(-1, *purified_x.shape[2:])
        if isinstance(self.classifier, EnsembleClassifier):
            return self.classifier.member_scores(purified_x)
        scores = self.classifier(purified_x)
        return [scores.to(torch.promote_types(scores.dtype, torch.float32))]

    def combine(self, scores: list[Tensor]) -> Tensor:
        """Scores [B, K] from those of `each`."""
        votes = self.purified(scores).unbind(dim=1)
        return ensembles.plurality([*votes]) if self.votes > 1 else votes[0]

    def purified(self, scores: list[Tensor]) -> Tensor:
        """Scores [B, votes, K] of each purified picture, from those of `each`."""
        combined = scores[0]
        if isinstance(self.classifier, EnsembleClassifier):
            combined = self.classifier.combine(scores)
        if (copies := self.local.copies) > 1:
            parts = combined.reshape(-1, copies, combined.shape[1]).unbind(dim=1)
            combined = ensembles.mean([*parts], "mean_probabilities")
        return combined.reshape(-1, self.votes, combined.shape[1])

    def parity_outputs(self, x: Tensor, sigma: Tensor, *z: Tensor) -> dict[str, Tensor]:
        """``scores`` [B, K], and the scores that they combine, if several.

        The latter are ``call_1``, … [B * votes * copies, K], one for each member of an ensemble.
        """
        calls, copies = self.each(x, sigma, *z), self.local.copies
        several = self.votes > 1 or copies > 1 or isinstance(self.classifier, EnsembleClassifier)
        named = {f"call_{place}": each for place, each in enumerate(calls, start=1)}
        return {"scores": self.combine(calls)} | (named if several else {})

    def decided(self, outputs: dict[str, Tensor], *, tolerance: float) -> Tensor:
        """Rows [B] whose votes stay the same if scores of calls change by up to ``tolerance``.

        ``outputs`` are `parity_outputs`.
        """
        if self.votes == 1:
            return torch.ones(len(outputs["scores"]), dtype=torch.bool)
        calls = [value for name, value in outputs.items() if name != "scores"]
        best = self.purified(calls).topk(min(2, outputs["scores"].shape[1])).values
        # A logarithm of mean probabilities moves by up to twice as much as the scores.
        return (best[..., 0] - best[..., -1] > 4 * tolerance).all(dim=1)

    def fix(self, sigma: float) -> AtSigma:
        """This classifier at one ``sigma``: (x [B, C, H, W], z if any) -> scores [B, K].

        Sigma stays in float64, as the purifier uses it to look up the time in the noise schedule.
        """
        return AtSigma(self, sigma, dtype=torch.float64).eval()


class Resize(Exact):
    """Bicubic resizing with antialiasing, [B, C, n, n] to [B, C, size, size].

    Written as products of rows and columns with a constant matrix, the linear map of F.interpolate,
    because ONNX lacks the antialiased operation.
    """

    matrix: Tensor  # [new, old]

    def __init__(self, old: int, new: int) -> None:
        super().__init__()
        eye = torch.eye(old, dtype=torch.float64)[None, None]
        scaled = F.interpolate(eye, size=(new, old), mode="bicubic", antialias=True)
        self.register_buffer("matrix", scaled[0, 0], persistent=False)  # [new, old]

    def forward(self, x: Tensor) -> Tensor:
        """Pictures of the new size."""
        matrix = self.matrix.to(x.dtype)
        return matrix @ x @ matrix.T


class Precise(nn.Module):
    """Wraps a denoiser's network so that it can be cast while images stay in float32."""

    kind: Tensor

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("kind", torch.empty(0), persistent=False)

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        """Output of ``network``, in float32 at least; ``told`` is its time input."""
        output = self.network(x.to(self.kind.dtype), told.to(self.kind.dtype))
        return output.to(torch.promote_types(output.dtype, torch.float32))


def save(
    folder: Path,
    cfg: Purified,
    *,
    root: Path,
    pictures: tuple[int, ...],
    code: list[str],
    params: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write a denoiser and a classifier as one network; returns its ``config.json``.

    Nothing is written if the parts, in ``denoisers/`` and ``models/`` of ``root``, do not fit
    together. ``pictures`` is the shape [C, H, W] of those to purify. The SHA-256 of the files
    ``code`` is recorded, so that later stages depend on them, and so are ``params``, sections of
    params.yaml by name, with those of the parts.

    Raises:
        CheckpointError: The denoiser or the run is missing or damaged.
        ConfigError: They, or the constants of ``cfg``, do not fit together.
    """
    behind, run = root / cfg.denoiser, root / "models" / cfg.run
    configs = [read_config(path) for path in (behind, run)]
    tensors = {
        f"{name}.{key}": tensor
        for name, path in (("denoiser", behind), ("classifier", run))
        for key, tensor in checkpoint.load(path / "model.safetensors")[0].items()
    }
    made_with = {k: v for config in configs for k, v in config.pop("params", {}).items()}
    config = {
        "classes": configs[1].get("classes"),  # `build` refuses none
        "sigma": cfg.sigma,
        "pictures": [*pictures],
        "purified": {key: value for key, value in asdict(cfg).items() if key in FUNCTION},
        "names": {"denoiser": cfg.denoiser, "run": cfg.run},
        "denoiser": configs[0],
        "classifier": configs[1],
        "code": {file: sha256(root / file) for file in code},
        "params": made_with | (params or {}),
    }
    if cfg.local.copies and cfg.local.fixed:
        draws, size = torch.arange(cfg.local.copies), tuple(ensembles.pictures(configs[1]))
        tensors["local"] = streams.gaussian(
            cfg.local.seed, torch.zeros_like(draws), draws, size, stream=streams.LOCAL
        )
    build(config, tensors, folder / "model.safetensors")
    kept = ("pictures", "purified", "denoiser", "classifier")
    function = json.dumps([config[key] for key in kept], sort_keys=True)
    checkpoint.save(folder / "model.safetensors", tensors, {"purified": function})
    write_json(folder / "config.json", config)
    return config


def about(root: Path, run: str) -> dict[str, Any]:
    """The ``weights`` digest of ``root/models/<run>``, and the ``params`` that made it."""
    folder = root / "models" / run
    params = read_config(folder).get("params", {})
    return {"weights": sha256(folder / "model.safetensors"), "params": params}


def load(folder: Path, *, trained: bool = False) -> tuple[nn.Module, dict[str, Any]]:
    """A run, an ensemble or a purified classifier, and its ``config.json``.

    It maps (x, sigma) to scores, or (x, sigma, z) if it has ``normals``, and has `fix`. Its
    classifier is as ``trained``, or for inference (`ensembles.build`).

    Raises:
        CheckpointError: It is missing or damaged.
    """
    config, path = read_config(folder), folder / "model.safetensors"
    made: Any = build if "purified" in config else ensembles.build
    return made(config, checkpoint.load(path)[0], path, trained=trained), config


def build(
    config: dict[str, Any], tensors: dict[str, Tensor], path: Path, *, trained: bool = False
) -> PurifiedClassifier:
    """The purified classifier of a ``config.json``, as of `load`, with the weights of ``path``.

    Raises:
        CheckpointError: ``config`` is damaged, or the weights are of another network.
        ConfigError: The parts do not fit together.
    """
    try:
        purified_config, sigma = config["purified"], config["classifier"]["sigma"]
        local = parse(purified_config["local"], Local, where="purified: local")
        _, _, _ = before = config["pictures"]
        after = ensembles.pictures(config["classifier"])
        purifier = registry.load("purifiers", purified_config["purifier"])
        votes = purified_config["votes"]
        constants = parse(purified_config["purify"], purifier.Config, where="purified: purify")
        clean = config["denoiser"]
        channels = clean["shape"]["channels"]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path.with_name('config.json')}: damaged ({error!r})") from None
    asked = constants.normals
    _fits(before, after, channels, local, votes, asked)
    behind = denoiser.build(clean, ensembles.within(tensors, "denoiser."), source=str(path))
    require(
        purifier.DIFFUSION == isinstance(behind, Denoiser),
        f"purifier: {purified_config['purifier']} needs a diffusion model; use learned for this "
        "denoiser"
        if purifier.DIFFUSION
        else f"purifier: {purified_config['purifier']} needs a denoiser trained to predict the "
        "clean picture, and this one is a diffusion model; use one_shot or multi_step",
    )
    if isinstance(behind, Denoiser):
        behind.network = Precise(behind.network)
    else:
        behind = Precise(behind)
    own = ensembles.within(tensors, "classifier.")
    network: Any = ensembles.build(config["classifier"], own, path, trained=trained)
    fields = votes * (asked + (0 if local.fixed else local.copies))
    return PurifiedClassifier(
        purifier.Purifier(behind, constants),
        network.fix(sigma),
        nn.Identity() if before[1] == after[1] else Resize(before[1], after[1]),
        votes=votes,
        normals=(fields, *before) if fields else (),
        local=local,
        copies=tensors.get("local"),
    ).eval()


def _fits(
    before: list[int], after: list[int], channels: int, local: Local, votes: int, asked: int
) -> None:
    """Refuse parts that do not fit together."""
    require(
        before[0] == after[0] == channels,
        f"purified: pictures have {before[0]} channels, the denoiser {channels}, the classifier "
        f"{after[0]}; all must be the same",
    )
    fresh = local.copies > 0 and not local.fixed
    require(
        not fresh or before == after,
        f"local.fixed: noise of each draw has the size of the pictures, {before[1]}, but the "
        f"classifier takes {after[1]}; set fixed: true",
    )
    require(
        votes == 1 or asked + fresh > 0,
        f"votes: {votes} votes without randomness are all the same; set it to 1, or take the "
        "purifier multi_step with steps above 1",
    )
