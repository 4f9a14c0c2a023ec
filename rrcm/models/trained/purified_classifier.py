r"""Purified classifiers: a denoiser in front of a classifier.

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

Guarantee: a row's scores depend only on that row's x and z, if those of the parts do.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrcm.config.certification import Local
from rrcm.models.trained import ensembles
from rrcm.models.trained.base.classifier import AtSigma
from rrcm.models.trained.ensembles import EnsembleClassifier


class _Precisely(nn.Module):
    """A module whose own buffers stay in float32 at least when it is cast.

    Casts are meant for networks; rounding to bfloat16 would change the resizing and the fixed
    noise.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        exact = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's has no types
        for name, before in exact.items():
            cast = getattr(self, name)
            if torch.promote_types(cast.dtype, torch.float32) != cast.dtype:
                setattr(self, name, before.to(cast.device, torch.float32))
        return self


class PurifiedClassifier(_Precisely):
    """A classifier behind a purifier: (x [B, C, H, W], sigma [], z) -> scores [B, K].

    ``normals`` is the shape [S, C, H, W] of z for one row, or () without randomness. The S noise
    fields are ordered by vote; within a vote, those for purifying precede those for the copies.
    """

    copies: Tensor | None

    def __init__(
        self,
        purifier: nn.Module,
        classifier: nn.Module,
        resize: "Resize",
        *,
        votes: int,
        normals: tuple[int, ...],
        local: Local,
        copies: Tensor | None,
    ) -> None:
        """Combine parts that `purified.rebuild` has checked against each other.

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
        seen = self.resize(self.purifier(x, sigma, reverse))
        if local is not None:
            seen = seen[:, None] + self.local.sigma * local
            seen = seen.reshape(-1, *seen.shape[2:])
        if isinstance(self.classifier, EnsembleClassifier):
            return self.classifier.member_scores(seen)
        scores = self.classifier(seen)
        return [scores.to(torch.promote_types(scores.dtype, torch.float32))]

    def combine(self, scores: list[Tensor]) -> Tensor:
        """Scores [B, K] from those of `each`."""
        votes = self.purified(scores).unbind(dim=1)
        return ensembles.mean([*votes], "plurality") if self.votes > 1 else votes[0]

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
        decided = torch.ones(len(outputs["scores"]), dtype=torch.bool)
        if isinstance(self.classifier, EnsembleClassifier):
            members = self.classifier.decided(outputs, tolerance=tolerance)
            decided &= members.view(len(decided), -1).all(dim=1)
        if self.votes > 1:
            calls = [value for name, value in outputs.items() if name != "scores"]
            best = self.purified(calls).topk(min(2, outputs["scores"].shape[1])).values
            # A logarithm of mean probabilities moves by up to twice as much as the scores.
            decided &= (best[..., 0] - best[..., -1] > 4 * tolerance).all(dim=1)
        return decided

    def fix(self, sigma: float) -> AtSigma:
        """This classifier at one ``sigma``: (x [B, C, H, W], z if any) -> scores [B, K].

        Sigma stays in float64, as the purifier uses it to look up the time in the noise schedule.
        """
        return AtSigma(self, sigma, dtype=torch.float64).eval()


class Resize(_Precisely):
    """Bicubic resizing with antialiasing, [B, C, n, n] to [B, C, size, size].

    Written as products of rows and columns with a constant matrix, the linear map of F.interpolate,
    because ONNX lacks the antialiased operation.
    """

    matrix: Tensor  # [new, old]

    def __init__(self, old: int, new: int) -> None:
        """Compute the matrix from ``old`` to ``new`` pixels per side."""
        super().__init__()
        self.needed = old != new
        eye = torch.eye(old, dtype=torch.float64)[None, None]
        scaled = F.interpolate(eye, size=(new, old), mode="bicubic", antialias=True)
        self.register_buffer("matrix", scaled[0, 0], persistent=False)  # [new, old]

    def forward(self, x: Tensor) -> Tensor:
        """Pictures of the new size."""
        if not self.needed:
            return x
        matrix = self.matrix.to(x.dtype)
        return matrix @ x @ matrix.T


class Precise(nn.Module):
    """Wraps a denoiser's network so that it can be cast while images stay in float32."""

    kind: Tensor

    def __init__(self, network: nn.Module) -> None:
        """Casting this module casts ``network``."""
        super().__init__()
        self.network = network
        self.register_buffer("kind", torch.empty(0), persistent=False)

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        """Output of ``network``, in float32 at least; ``told`` is its time input."""
        output = self.network(x.to(self.kind.dtype), told.to(self.kind.dtype))
        return output.to(torch.promote_types(output.dtype, torch.float32))
